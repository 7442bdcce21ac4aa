// Package belief is what this process may believe of a server, and of its replies: a machine and its arithmetic. It sends
// nothing, has no clock and no goroutine, and knows no client: what happens is told to it, and it says what to do.
package belief
