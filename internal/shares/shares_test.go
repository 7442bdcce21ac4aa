package shares

import (
	"sync"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

type client struct{ rueidis.Client }

// byValue is a wrapper that no map can have for a key.
type byValue struct {
	rueidis.Client
	_ []int
}

func TestShares_AreMadeOnceForAClient(t *testing.T) {
	var all Of[*int]
	made := 0
	first := func() *int {
		made++
		return new(int)
	}
	one, other := &client{}, &client{}
	shared, leave := all.Join(one, first)
	again, leaveAgain := all.Join(one, first)
	require.Same(t, shared, again)
	require.Equal(t, 1, made)
	elsewhere, leaveElsewhere := all.Join(other, first)
	require.NotSame(t, shared, elsewhere)

	require.False(t, leave())
	again, leave = all.Join(one, first)
	require.Same(t, shared, again, "one user of two is there")
	require.False(t, leave())
	require.True(t, leaveAgain())
	require.Nil(t, all.of[one])
	renewed, leave := all.Join(one, first)
	require.NotSame(t, shared, renewed)
	require.True(t, leave())
	require.True(t, leaveElsewhere())
	require.Empty(t, all.of)
}

func TestShares_OfAWrapperByValue(t *testing.T) {
	var all Of[*int]
	first := func() *int { return new(int) }
	one, leave := all.Join(byValue{}, first)
	other, leaveOther := all.Join(byValue{}, first)
	require.NotSame(t, one, other)
	require.True(t, leave())
	require.True(t, leaveOther())
	require.Empty(t, all.of)
}

// Users that come and go at once share what one of them has made, even if several begin to make it.
func TestShares_OfUsersThatComeAtOnce(t *testing.T) {
	var all Of[*int]
	one := &client{}
	var users sync.WaitGroup
	var mu sync.Mutex
	closed := map[*int]bool{}
	for range 200 {
		users.Go(func() {
			shared, leave := all.Join(one, func() *int { return new(int) })
			mu.Lock()
			if closed[shared] {
				t.Error("it is closed")
			}
			mu.Unlock()
			if leave() {
				mu.Lock()
				closed[shared] = true
				mu.Unlock()
			}
		})
	}
	users.Wait()
	require.Empty(t, all.of)
}
