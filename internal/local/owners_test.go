package local

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/owner"
)

// Owners come and go in any order, each more than once.
func TestOwners(t *testing.T) {
	var s owners
	want := map[owner.ID]int32{}
	check := func() {
		t.Helper()
		require.Equal(t, want, maps.Collect(s.all()))
		require.EqualValues(t, len(want), s.count.Load())
		for _, o := range []owner.ID{anna, bert, cleo} {
			require.Equal(t, want[o], s.of(o))
		}
	}
	add := func(o owner.ID) {
		t.Helper()
		s.add(o)
		want[o]++
		check()
	}
	undo := func(o owner.ID) {
		t.Helper()
		if want[o]--; want[o] == 0 {
			delete(want, o)
		}
		require.Equal(t, want[o], s.undo(o))
		check()
	}
	check()
	for range 2 {
		add(anna)
		add(bert)
		add(bert)
		add(anna)
		undo(anna)
		undo(anna) // the first one leaves before the others
		add(cleo)
		add(anna)
		undo(bert)
		undo(cleo)
		add(cleo)
		undo(anna)
		undo(bert)
		undo(cleo)
		require.Nil(t, s.more, "kept for nobody")
	}
	for _, o := range []owner.ID{anna, bert, anna} {
		add(o)
	}
	s.clear()
	clear(want)
	check()
	require.Nil(t, s.more)
	add(cleo)
}
