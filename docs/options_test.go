package docs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOptions: the compiler refuses an option where it means nothing. That AtMost does not fit a reader shows at the call, since
// both sides of a read-write lock are a *Lock.
func TestOptions(t *testing.T) {
	const (
		do       = `locks.Do(ctx, "42", report, %s)`
		acquire  = `func() error { _, err := locks.Acquire(ctx, "42", %s); return err }()`
		permits  = `locks.Semaphore("partner", 5).Do(ctx, report, %s)`
		several  = `func() error { _, err := locks.AcquireAll(ctx, []string{"a", "b"}, %s); return err }()`
		once     = `func() error { _, err := locks.Once(ctx, "report", time.Hour, report, %s); return err }()`
		election = `func() error { _, err := leader.New(locks, "role", lead, %s); return err }()`
	)
	calls := []string{do, acquire, permits, several, once, election}
	check := newChecker(t)
	for option, fits := range map[string][]bool{
		"Lease(time.Second)":   {true, true, true, true, true, true},
		"Wait(time.Second)":    {true, true, true, true, false, false},
		"NoWait()":             {true, true, true, true, false, false},
		"FailFast()":           {true, true, true, true, false, false},
		"AtMost(time.Second)":  {true, true, true, true, false, false},
		"AtLeast(time.Second)": {true, true, false, false, false, false},
		"Permits(2)":           {false, false, true, false, false, false},
		"RetryOnError()":       {false, false, false, false, true, false},
	} {
		for i, call := range calls {
			errs := check("return " + fmt.Sprintf(call, "lockregistry."+option))
			require.Equal(t, fits[i], len(errs) == 0, "%s: %s: %v", option, call, errs)
		}
	}
}
