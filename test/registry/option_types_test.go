package registry_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/leader"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// takers are the functions that take options for one call, by what they apply to.
var takers = map[string][]any{
	"lock": {
		(*lockregistry.Lock).Lock, (*lockregistry.Lock).TryLock, (*lockregistry.Lock).Acquire, (*lockregistry.Lock).Do,
		(*lockregistry.Registry).Acquire, (*lockregistry.Registry).Do,
	},
	"semaphore": {
		(*lockregistry.Semaphore).Acquire, (*lockregistry.Semaphore).Do,
	},
	"value":   {lockregistry.DoValue[int, *lockregistry.Lock], lockregistry.DoValue[int, *lockregistry.Semaphore]},
	"several": {(*lockregistry.Registry).AcquireAll},
	"once":    {(*lockregistry.Registry).Once},
	"leader":  {leader.New},
}

// The compiler refuses an option where it makes no sense: the option's type is not that of the parameter. Nor does the value
// fit by a type assertion.
func TestOptions_FitOnlyWhereTheyMakeSense(t *testing.T) {
	every := []string{"lock", "semaphore", "value", "several"}
	for name, c := range map[string]struct {
		makes any
		made  any
		fits  []string
	}{
		"Lease":        {lockregistry.Lease, lockregistry.Lease(time.Second), slices.Concat(every, []string{"once", "leader"})},
		"Wait":         {lockregistry.Wait, lockregistry.Wait(time.Second), every},
		"NoWait":       {lockregistry.NoWait, lockregistry.NoWait(), every},
		"FailFast":     {lockregistry.FailFast, lockregistry.FailFast(), every},
		"AtMost":       {lockregistry.AtMost, lockregistry.AtMost(time.Second), every},
		"AtLeast":      {lockregistry.AtLeast, lockregistry.AtLeast(time.Second), []string{"lock"}},
		"Permits":      {lockregistry.Permits, lockregistry.Permits(2), []string{"semaphore"}},
		"RetryOnError": {lockregistry.RetryOnError, lockregistry.RetryOnError(), []string{"once"}},
		"WithBackoff":  {leader.WithBackoff, leader.WithBackoff(1, 1), []string{"leader"}},
		"OnFailed":     {leader.OnFailed, leader.OnFailed(nil), []string{"leader"}},
		"WithLease":    {lockregistry.WithLease, lockregistry.WithLease(time.Second), nil},
	} {
		for _, on := range kit.InOrder(takers) {
			for _, taker := range takers[on] {
				wants := slices.Contains(c.fits, on)
				option := optionOf(taker)
				require.Equal(t, wants, reflect.TypeOf(c.makes).Out(0).AssignableTo(option), "%s for %s", name, on)
				require.Equal(t, wants, reflect.TypeOf(c.made).AssignableTo(option), "the value of %s for %s", name, on)
			}
		}
	}
}

// Only this module makes options: each interface has a method that no other package can declare.
func TestOptions_AreSealed(t *testing.T) {
	for _, on := range kit.InOrder(takers) {
		for _, taker := range takers[on] {
			option := optionOf(taker)
			require.Equal(t, reflect.Interface, option.Kind())
			sealed := false
			for i := range option.NumMethod() {
				sealed = sealed || option.Method(i).PkgPath != ""
			}
			require.True(t, sealed, "%s: %v", on, option)
		}
	}
}

// optionOf returns the type of the options that a function takes.
func optionOf(taker any) reflect.Type {
	f := reflect.TypeOf(taker)
	return f.In(f.NumIn() - 1).Elem()
}
