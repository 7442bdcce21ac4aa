package protocol

// Foreign are the digests of the scripts by which the Java libraries obtain locks, of all formats and versions, and by which this
// library did before it had the queue. A process of theirs that waits runs one again and again, so a server that knows none of
// them has no such process: EVAL and SCRIPT LOAD both have the server keep a script. What it has once known it knows until it is
// restarted, or SCRIPT FLUSH; a waiting process has it know the script again with its next try. interop asserts that each
// version's is here, and torture that those of before the queue are.
func Foreign() []string { return foreign }

var foreign = append(append(spring.Foreign, redisson.Foreign...), readers.Foreign...)
