package protocol

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
)

const registryID = "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55"

// row is a reply of inspect.lua.
func row(kind, token string, tickets []any, fields ...any) []any {
	return []any{kind, int64(-2), token, int64(len(tickets) / 3), tickets, int64(len(fields) / 3), fields}
}

func TestInspection_Kinds(t *testing.T) {
	t.Parallel()
	since := time.UnixMicro(1_700_000_000_000_000)
	number, place := "1700000000000000", "1.7e+15"
	cut := strings.Repeat("x", 100) + " (too long: 5000 bytes)"
	for name, c := range map[string]struct {
		row  []any
		want Inspection
	}{
		"free":                           {row("none", "", nil), Inspection{}},
		"free, with a counter of tokens": {row("none", "100", nil), Inspection{}},
		"Spring's": {row("string", "7", nil, registryID+":"+number, "1", int64(1500)), Inspection{
			Kind: KindLock, Stored: AsString, HolderCount: 1, Holders: []Holder{{
				Text: registryID + ":" + number, Name: Name{Registry: registryID, Since: since, Known: true},
				Lease: 1500 * time.Millisecond, Token: 7,
			}},
		}},
		"Java's in Spring's format, without an end": {row("string", "", nil, registryID, "1", int64(-1)), Inspection{
			Kind: KindLock, Stored: AsString, HolderCount: 1,
			Holders: []Holder{{Text: registryID, Name: Name{Registry: registryID}, Lease: -time.Millisecond}},
		}},
		"kept": {row("string", "", nil, "a:"+number+":atleast", "1", int64(1)), Inspection{
			Kind: KindLock, Stored: AsString, HolderCount: 1, Holders: []Holder{{
				Text: "a:" + number + ":atleast", Name: Name{Registry: "a", Since: since, Kept: true, Known: true},
				Lease: time.Millisecond,
			}},
		}},
		"Redisson's": {row("lock", "7", nil, "a:83", "2", int64(0)), Inspection{
			Kind: KindLock, Stored: AsHash, HolderCount: 1,
			Holders: []Holder{{Text: "a:83", Name: Name{Registry: "a", Known: true}, Lease: time.Millisecond, Token: 7}},
		}},
		"a reader and a writer": {row("readwrite", "7", nil, "a:1", "1", int64(5), "b:2:write", "1", int64(6)), Inspection{
			Kind: KindReadWrite, Stored: AsHash, HolderCount: 2, Holders: []Holder{
				{Text: "a:1", Name: Name{Registry: "a", Known: true}, Shared: true, Lease: 5 * time.Millisecond},
				{Text: "b:2:write", Name: Name{Registry: "b", Writes: true, Known: true}, Lease: 6 * time.Millisecond, Token: 7},
			},
		}},
		"what is too long": {row("lock", "too long", []any{
			cut, place, int64(-1), cut, place, int64(-1),
		}, cut, "1", int64(5)), Inspection{
			Kind: KindLock, Stored: AsHash, HolderCount: 1, WaiterCount: 2, TooLong: []string{"token", "holder", "waiter"},
			Holders: []Holder{{Text: cut, Name: Name{Registry: cut}, Lease: 5 * time.Millisecond}},
			Waiters: []Queued{{Registry: cut, Since: since}, {Registry: cut, Since: since}},
		}},
		"waiters of a free plain lock": {row("none", "", []any{"a|b:1|60000", place, int64(1), "c:2", "here", int64(0)}), Inspection{
			Kind: KindLock, WaiterCount: 2, Waiters: []Queued{{Registry: "a|b", Since: since}, {Registry: "c", Gone: true}},
		}},
		"waiters of a free read-write lock": {row("none", "", []any{
			"a:1|60000r", place, int64(0), "c:2|60000w", place, int64(-1),
		}), Inspection{
			Kind: KindReadWrite, WaiterCount: 2,
			Waiters: []Queued{
				{Registry: "a", Shared: true, Since: since, Gone: true}, {Registry: "c", Since: since},
			},
		}},
	} {
		got, err := parseInspection(c.row)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
}

func TestInspection_Errors(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]struct {
		row  any
		want error
	}{
		"a list":                             {row("list", "", nil), fault.WrongType},
		"long string":                        {row("long string", "", nil), fault.WrongType},
		`a hash with the field "color"`:      {row("lock", "", nil, "color", "red", int64(5)), fault.WrongType},
		"a number, as Redisson's RSemaphore": {row("number", "", nil, "3", "1", int64(-1)), fault.Number},
		"no array":                           {"OK", ErrStrange},
		"a shorter array":                    {row("none", "", nil)[:6], ErrStrange},
		"a number for a name":                {row("string", "", nil, int64(1), "1", int64(5)), ErrStrange},
		"a name for a lease":                 {row("string", "", nil, "a:1", "1", "soon"), ErrStrange},
		"a number for a ticket":              {row("none", "", []any{int64(1), "1", int64(1)}), ErrStrange},
		"a name for listeners":               {row("none", "", []any{"a:1", "1", "1"}), ErrStrange},
		"a number for a place":               {row("none", "", []any{"a:1", int64(1), int64(1)}), ErrStrange},
	} {
		_, err := parseInspection(c.row)
		require.ErrorIs(t, err, c.want, text)
		if errors.Is(c.want, fault.WrongType) {
			require.ErrorContains(t, err, text)
		}
	}
}

// Any reply of a server is read or refused, and nothing is read that is not in the reply.
func FuzzInspection(f *testing.F) {
	for _, reply := range [][]any{
		row("none", "", []any{"a:1|60000r", "1.7e+15", int64(0)}), row("readwrite", "too long", nil, "b:2:write", "1", int64(6)),
		row("string", "18446744073709551616", []any{"|", "nan", int64(-1)}, ":atleast", "1", int64(math.MinInt64)),
	} {
		text, err := json.Marshal(reply)
		require.NoError(f, err)
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		var reply any
		if json.Unmarshal([]byte(text), &reply) != nil {
			return
		}
		reply = whole(reply)
		x, err := parseInspection(reply)
		if err != nil {
			require.True(t, errors.Is(err, ErrStrange) || errors.Is(err, fault.WrongType), err)
			return
		}
		values := reply.([]any) //nolint:forcetypeassert // it was read
		require.Len(t, x.Holders, len(values[6].([]any))/3)
		require.Len(t, x.Waiters, len(values[4].([]any))/3)
		require.LessOrEqual(t, len(x.TooLong), 3)
		for _, h := range x.Holders {
			require.True(t, strings.HasPrefix(h.Text, h.Name.Registry))
		}
		require.Equal(t, x.Kind == "", x.Stored == NotStored && len(x.Waiters) == 0)
	})
}

// whole has numbers as Redis has them.
func whole(value any) any {
	switch v := value.(type) {
	case float64:
		return int64(v)
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	}
	return value
}
