package protocol

import "slices"

// Foreign returns the digests of the scripts with which the Java libraries obtain locks, of all formats and versions, and with
// which this library did before it had the queue. A process that waits with such a script runs it again and again, and EVAL and
// SCRIPT LOAD make the server keep the script: so if a server knows none of them, no such process waits. A server forgets scripts
// on restart, on SCRIPT FLUSH and, from Redis 7.4 and Valkey 8 on, for 500 newer ones that came by EVAL; the next try of a
// waiting process makes them known again. Tests in interop assert that the scripts of each Java version are here, tests in
// torture the older ones of this library.
//
// Semaphores have none: only this library knows their format.
func Foreign() []string { return foreign }

var foreign = slices.Concat(spring.Foreign, redisson.Foreign, readers.Foreign)
