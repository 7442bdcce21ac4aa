// Package belief is what this process may believe about a server and its replies: a state machine and its arithmetic. It sends
// nothing, has no clock and no goroutine, and knows no client. Package transport says what happens, and does what the machine
// answers.
//
//	what happens                                    what is told                    what is said
//	a command is sent, and a timer fires            [Alarm]: Due, Ring, Excuses     silent; or this process stood still
//	it is answered, or not; its connection breaks   [State.Judge], Broke            believed, late, doubtful
//	it had no reply for too long                    FoundSilent                     suspect; what to do, see [Acts]
//	a message comes                                 GotMessage
//	Sentinels warn; a switch; a standstill          Doubted, Switched, StoodStill   in doubt: whom to ask, see [Way]
//	Sentinels answer                                FirstWord, Told, [Way.Told]     vouched, or in doubt
//	a replica is where a master was                 Redirected, Said, [Looks]       suspect; what to look at, and to close
//	a question is refused                           [Refusals]                      when to ask again
//
// Each limit is derived from measured round trips ([Trips]) and from one of six times, see [Tick].
package belief
