package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern string
		paths   []string
		others  []string
	}{
		{"", []string{"", "a"}, nil},
		{"a", []string{"a", "bac"}, []string{"", "b"}},
		{"a.", []string{"a."}, []string{"ab"}},
		{"*", []string{"", "a", "a\nb", "\xff"}, nil},
		{"a*", []string{"a", "ab"}, []string{"ba"}},
		{"*a", []string{"a", "ba"}, []string{"ab"}},
		{"a*a", []string{"aa", "aba"}, []string{"a", "ab"}},
		{"*b*", []string{"b", "abc"}, []string{"ac"}},
		{"a*b*b", []string{"abb", "a-b-b", "abbb"}, []string{"ab", "a-b-"}},
		{"a**b", []string{"ab", "a-b"}, []string{"a"}},
		{"\xff", []string{"a\xffb"}, []string{"a\ufffdb"}},
		{"\xc3*", []string{"\xc3", "\xc3\xa4"}, []string{"\xa4"}},
	} {
		for _, path := range c.paths {
			require.True(t, matches(c.pattern, path), "%q %q", c.pattern, path)
		}
		for _, path := range c.others {
			require.False(t, matches(c.pattern, path), "%q %q", c.pattern, path)
		}
	}
}

// Of several holders the one counts whose lease ends first, whatever their order is.
func TestSortByLease(t *testing.T) {
	lock := func(path string, leases ...time.Duration) inspect.Lock {
		info := inspect.Lock{Path: path, Kind: observe.KindReadWrite}
		for _, lease := range leases {
			info.Holders = append(info.Holders, inspect.Holder{Lease: lease})
		}
		return info
	}
	shown, _ := (&choice{sort: "lease"}).ordered([]inspect.Lock{
		lock("free"), lock("forever", -1), lock("middle", 30*time.Second), lock("first", -1, time.Minute, 10*time.Second),
	})
	var paths []string
	for _, info := range shown {
		paths = append(paths, info.Path)
	}
	require.Equal(t, []string{"first", "middle", "forever", "free"}, paths)
}
