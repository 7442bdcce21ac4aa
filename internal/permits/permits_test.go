package permits

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// call is one of a semaphore, or what all of its calls have in common.
type call struct {
	key    string
	common *call
}

func newCalls() *Calls[*call] {
	return New((*call).keyOf, func(key string) *call { return &call{key: key} })
}

func (c *call) keyOf() string { return c.key }

func join(p *Calls[*call], key string) *call {
	return p.Join(key, func(common *call) *call { return &call{key, common} })
}

func TestCalls(t *testing.T) {
	p := newCalls()
	_, known := p.Known("a")
	require.False(t, known)
	one, two, other := join(p, "a"), join(p, "a"), join(p, "b")
	require.Same(t, one.common, two.common)
	require.NotSame(t, one.common, other.common)
	require.Same(t, one.common, p.Of("a"))
	common, known := p.Known("a")
	require.True(t, known)
	require.Same(t, one.common, common)
	require.ElementsMatch(t, []*call{one, two, other}, p.All())

	p.Asks(one, "7")
	p.Asks(two, "8")
	p.Asks(one, "9") // its next attempt
	for number, want := range map[string]*call{"7": nil, "8": two, "9": one} {
		l, ok := p.Named(number)
		require.Equal(t, want != nil, ok, number)
		require.Same(t, want, l, number)
	}
	p.Leave(one)
	p.Leave(one)
	_, ok := p.Named("9")
	require.False(t, ok)
	p.Asks(one, "10") // it has left
	_, ok = p.Named("10")
	require.False(t, ok)
	require.ElementsMatch(t, []*call{two, other}, p.All())
}

// A warning about the number of permits comes once for each number that is found.
func TestCalls_News(t *testing.T) {
	p := newCalls()
	require.True(t, p.News("a", 3))
	require.False(t, p.News("a", 3))
	require.True(t, p.News("b", 3))
	require.True(t, p.News("a", 4))
}

// What the calls of a key have in common is kept for later calls, but not for ever: only keys with calls are surely kept.
func TestCalls_DropsWhatIsUnused(t *testing.T) {
	p := newCalls()
	used := join(p, "used")
	for i := range 3 * leastUnused {
		p.Leave(join(p, strconv.Itoa(i)))
		require.LessOrEqual(t, len(p.groups), leastUnused)
	}
	require.Same(t, used.common, p.Of("used"))
}
