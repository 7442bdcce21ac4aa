package owner

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"

	"github.com/petermattis/goid"
)

// goroutineID returns the number of the calling goroutine, which no other goroutine of the process ever has. C threads that call
// Go are the exception: one may get the number of another that has ended.
//
// Goid reads it from the runtime's own structure in a few nanoseconds, runtime.Stack prints it in 4 to 6 microseconds:
// too slow for twice in every lock and unlock. But a Go release that goid does not know yet may have moved the field, so
// goid is used only when it agrees with runtime.Stack in this very program.
var goroutineID = pickGoroutineID(func() uint64 { return uint64(goid.Get()) })

func pickGoroutineID(fast func() uint64) func() uint64 {
	if agree(fast, printedGoroutineID) {
		return fast
	}
	return printedGoroutineID
}

// agree compares two ways of reading a goroutine's number, on several goroutines that live at the same time.
func agree(a, b func() uint64) bool {
	const goroutines = 8
	same := make([]bool, goroutines)
	numbers := make([]uint64, goroutines)
	var all, done sync.WaitGroup
	all.Add(goroutines)
	for i := range goroutines {
		done.Go(func() {
			all.Done()
			all.Wait()
			numbers[i] = b()
			same[i] = a() == numbers[i] && a() == b()
		})
	}
	done.Wait()
	seen := map[uint64]bool{a(): true}
	for i := range goroutines {
		if !same[i] || seen[numbers[i]] {
			return false
		}
		seen[numbers[i]] = true
	}
	return a() == b()
}

// printedGoroutineID takes the number from the first line of a stack trace: "goroutine 42 [running]:".
func printedGoroutineID() uint64 {
	var buf [64]byte
	line := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	number, _, _ := bytes.Cut(line, []byte(" "))
	id, err := strconv.ParseUint(string(number), 10, 64)
	if err != nil { // all goroutines would be one owner: better no lock at all
		panic("lockregistry: cannot read the goroutine's number from " + strconv.Quote(string(line)))
	}
	return id
}
