package main

import (
	"testing"

	"github.com/stretchr/testify/require"
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
