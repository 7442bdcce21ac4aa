package owner

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/petermattis/goid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stackNumber reads the number of the goroutine that calls it in another way than the code that is tested.
func stackNumber(t *testing.T) uint64 {
	t.Helper()
	var number uint64
	_, err := fmt.Sscanf(string(debug.Stack()), "goroutine %d [running]:", &number)
	assert.NoError(t, err)
	return number
}

// together runs a function on so many goroutines that all live at the same time.
func together(goroutines int, do func(i int)) {
	var alive, done sync.WaitGroup
	alive.Add(goroutines)
	for i := range goroutines {
		done.Go(func() {
			alive.Done()
			alive.Wait()
			do(i)
		})
	}
	done.Wait()
}

func TestGoroutineNumbers(t *testing.T) {
	for name, number := range map[string]func() uint64{
		"chosen":  goroutineID,
		"goid":    func() uint64 { return uint64(goid.Get()) },
		"printed": printedGoroutineID,
	} {
		t.Run(name, func(t *testing.T) {
			const goroutines = 500
			numbers := make([]uint64, goroutines)
			together(goroutines, func(i int) {
				numbers[i] = number()
				assert.Equal(t, stackNumber(t), numbers[i])
				assert.Equal(t, numbers[i], number(), "stays the same")
				deep(100, func() { assert.Equal(t, numbers[i], number(), "on a stack that was moved") })
			})
			seen := map[uint64]bool{0: true, number(): true}
			for _, n := range numbers {
				require.False(t, seen[n], "%d twice", n)
				seen[n] = true
			}
		})
	}
}

// deep calls a function with so much stack in use that the runtime has to move it.
func deep(depth int, do func()) {
	var room [1024]byte
	if depth == 0 {
		do()
		return
	}
	deep(depth-1, do)
	runtime.KeepAlive(&room)
}

// Neither odd names of functions nor a truncated stack trace confuse the code that reads the number from the trace.
func TestPrintedNumberIsReadFromTheFirstLineOnly(t *testing.T) {
	deep(50, func() {
		n := printedGoroutineID()
		assert.Equal(t, stackNumber(t), n)
		first, _, _ := strings.Cut(string(debug.Stack()), "\n")
		assert.Equal(t, fmt.Sprintf("goroutine %d [running]:", n), first)
	})
}

// isFast reports whether a reader was picked, by what it does: it counts its calls.
func isFast(t *testing.T, reader func() uint64) bool {
	t.Helper()
	calls := 0
	var mu sync.Mutex
	picked := pickGoroutineID(func() uint64 {
		mu.Lock()
		calls++
		mu.Unlock()
		return reader()
	})
	before := calls
	got := picked()
	if calls == before {
		require.Equal(t, stackNumber(t), got, "the fallback")
		return false
	}
	return true
}

func TestReaderThatLiesIsRejected(t *testing.T) {
	first := sync.OnceValue(printedGoroutineID)
	self := stackNumber(t)
	var mu sync.Mutex
	called := map[uint64]int{}
	calls := func() (n uint64, times int) {
		n = printedGoroutineID()
		mu.Lock()
		defer mu.Unlock()
		called[n]++
		return n, called[n]
	}
	for name, lie := range map[string]func() uint64{
		"zero":        func() uint64 { return 0 },
		"constant":    func() uint64 { return self },
		"one more":    func() uint64 { return printedGoroutineID() + 1 },
		"one less":    func() uint64 { return printedGoroutineID() - 1 },
		"all but one": func() uint64 { return printedGoroutineID() &^ 1 },
		"right on the first goroutine only": func() uint64 {
			return first()
		},
		"right on the goroutine that asks only": func() uint64 {
			if n := printedGoroutineID(); n == self {
				return n
			}
			return 7
		},
		"right on new goroutines only": func() uint64 {
			if n := printedGoroutineID(); n != self {
				return n
			}
			return 7
		},
		"right the first time only": func() uint64 {
			n, times := calls()
			if times > 1 {
				return 7
			}
			return n
		},
		"right the first time only, but always on the goroutine that asks": func() uint64 {
			n, times := calls()
			if times > 1 && n != self {
				return 7
			}
			return n
		},
		"shifted": func() uint64 { return printedGoroutineID() << 8 },
	} {
		require.False(t, isFast(t, lie), name)
	}
}

func TestReaderThatIsRightIsPicked(t *testing.T) {
	require.True(t, isFast(t, printedGoroutineID))
	require.True(t, isFast(t, func() uint64 { return uint64(goid.Get()) }), "goid does not know %s", runtime.Version())
}

// Two readers that agree on the same number everywhere cannot distinguish goroutines.
func TestReadersThatAgreeOnOneNumber(t *testing.T) {
	seven := func() uint64 { return 7 }
	require.False(t, agree(seven, seven))
	require.True(t, agree(printedGoroutineID, printedGoroutineID))
}

func BenchmarkGoroutineID(b *testing.B) {
	for name, number := range map[string]func() uint64{"chosen": goroutineID, "printed": printedGoroutineID} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				number()
			}
		})
	}
}
