package page_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
)

// tickOf is the last tick of what was told.
func tickOf(t *testing.T, text string) (tick struct {
	At int64 `json:"at"`
	Of []struct {
		Held    int `json:"held"`
		Waiters int `json:"waiters"`
		Grants  int `json:"grants"`
	} `json:"of"`
	Trouble   string `json:"trouble"`
	Failed    bool   `json:"failed"`
	Deadlocks []struct {
		Prefix string `json:"prefix"`
		Waits  []struct {
			ID      string   `json:"id"`
			HoldIDs []string `json:"holdIds"`
		} `json:"waits"`
	} `json:"deadlocks"`
},
) {
	t.Helper()
	at := strings.LastIndex(text, "event: tick\ndata: ")
	require.Positive(t, at, text)
	data, _, _ := strings.Cut(text[at+len("event: tick\ndata: "):], "\n")
	require.NoError(t, json.Unmarshal([]byte(data), &tick))
	return tick
}

// The same path of two prefixes is two locks, each with its own name, figures, deadlocks and losses.
func TestPrefixesAreApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		orders, stock := newFake(), newFake()
		orders.set(someLock("a/b", 2))
		stock.set(someLock("a/b", 0), someLock("c", 1))
		stock.deadlocks = oneDeadlock
		h := newPage(t, nil, page.WithPrefix("orders", orders), page.WithPrefix("st:ock", stock))
		b := look(t, h)
		synctest.Wait()
		text := b.read()
		require.Contains(t, text, `"prefixes":[{"name":"orders","id":"orders"},{"name":"st:ock","id":"st%3Aock"}]`)
		for _, row := range []string{
			`{"prefix":"orders","path":"a/b","id":"orders/a%2Fb",`, `{"prefix":"st:ock","path":"a/b","id":"st%3Aock/a%2Fb",`,
			`{"prefix":"st:ock","path":"c","id":"st%3Aock/c",`,
		} {
			require.Equal(t, 1, strings.Count(text, row), row)
		}
		tick := tickOf(t, text)
		require.Equal(t, []int{1, 2, 2, 1}, []int{tick.Of[0].Held, tick.Of[0].Waiters, tick.Of[1].Held, tick.Of[1].Waiters})
		require.Len(t, tick.Deadlocks, 1)
		require.Equal(t, "st:ock", tick.Deadlocks[0].Prefix)
		require.Equal(t, "st%3Aock/a", tick.Deadlocks[0].Waits[0].ID)
		require.Equal(t, []string{"st%3Aock/b"}, tick.Deadlocks[0].Waits[0].HoldIDs)

		<-time.After(time.Second)
		lost := someLock("c", 0)
		lost.Holders[0].Renewed, lost.Holders[0].Lease = time.Minute, 600*time.Millisecond
		stock.set(lost)
		<-time.After(700 * time.Millisecond)
		stock.remove("c")
		orders.set(someLock("d", 0))
		synctest.Wait()
		b.read()
		<-time.After(time.Second)
		synctest.Wait()
		text = b.read()
		require.Contains(t, text, "event: gone\ndata: [\"st%3Aock/c\"]")
		tick = tickOf(t, text)
		require.Equal(t, 1, tick.Of[0].Grants)
		require.Zero(t, tick.Of[1].Grants)
		require.Contains(t, text, `"lost":[{"prefix":"st:ock","path":"c","id":"st%3Aock/c",`)
	})
}

// When a prefix cannot be read, what was known of it stays, and the others go on.
func TestPrefixThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		orders, stock := newFake(), newFake()
		orders.set(someLock("a", 0))
		stock.set(someLock("b", 3))
		b := look(t, newPage(t, nil, page.WithPrefix("orders", orders), page.WithPrefix("stock", stock)))
		<-time.After(time.Second)
		synctest.Wait()
		b.read()
		stock.do(func() { stock.failure = errors.New("NOPERM"); clear(stock.locks) })
		orders.set(someLock("new", 0))
		<-time.After(5 * time.Second)
		synctest.Wait()
		text := b.read()
		require.Contains(t, text, `"path":"new"`)
		require.NotContains(t, text, "event: gone")
		tick := tickOf(t, text)
		require.Equal(t, "stock: NOPERM", tick.Trouble)
		require.False(t, tick.Failed)
		require.Equal(t, 3, tick.Of[1].Waiters)
		require.WithinDuration(t, time.Now(), time.UnixMilli(tick.At), time.Second)

		orders.do(func() { orders.failure = errors.New("NOAUTH") })
		<-time.After(5 * time.Second)
		synctest.Wait()
		tick = tickOf(t, b.read())
		require.Equal(t, "orders: NOAUTH; stock: NOPERM", tick.Trouble)
		require.True(t, tick.Failed)

		for _, source := range []*fake{orders, stock} {
			source.do(func() { source.failure = nil })
		}
		<-time.After(5 * time.Second)
		synctest.Wait()
		text = b.read()
		require.Contains(t, text, "event: gone\ndata: [\"stock/b\"]")
		require.Empty(t, tickOf(t, text).Trouble)
	})
}

// answerTo is the answer to a GET.
func answerTo(t *testing.T, h http.Handler, url string) (code int, text, location string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))
	return w.Code, w.Body.String(), w.Header().Get("Location")
}

// An address names a lock by prefix and path. What it cannot mean is said, with what there is.
func TestAddressOfALock(t *testing.T) {
	t.Parallel()
	orders, stock := &asked{fake: newFake()}, &asked{fake: newFake()}
	orders.set(someLock("a b", 0))
	stock.set(someLock("c", 0))
	two := newPage(t, nil, page.WithPrefix("orders", orders), page.WithPrefix("stock", stock))
	named := newPage(t, nil, page.WithPrefix("orders", orders))
	plain := newPage(t, orders)
	for _, try := range []struct {
		page  *page.Handler
		query string
		code  int
		want  string
	}{
		{two, "prefix=orders&path=a+b", 200, `{"id":"orders/a%20b","path":"a b","at":`},
		{two, "prefix=orders&path=a%20b", 200, `"key":"orders:a b"`},
		{two, "prefix=stock&path=a%20b", 200, `"lock":null,"note":"nobody holds it, and nobody waits in Redis"`},
		{two, "prefix=stock", 200, `"note":"no path is given: write lock?path=PATH"`},
		{two, "prefix=mail&path=a", 404, `{"error":"the prefix mail is not shown here: this page shows orders, stock"}`},
		{two, "prefix=%1b%5b2J&path=a", 404, `the prefix \\x1b[2J is not shown here`},
		{two, "path=a", 404, `{"error":"no prefix is given: this page shows orders, stock"}`},
		{two, "prefix=orders&path=%zz", 400, `the address is not one of a lock`},
		{named, "path=a+b", 200, `{"id":"orders/a%20b"`},
		{named, "prefix=orders&path=a+b", 200, `{"id":"orders/a%20b"`},
		{named, "prefix=stock&path=a", 404, `this page shows orders"`},
		{plain, "path=a+b", 200, `{"id":"a%20b"`},
		{plain, "path=%ff", 200, `{"id":"%FF","path":"\\xff"`},
		{plain, "prefix=orders&path=a", 404, `this page shows the locks of one prefix, and addresses do not name it`},
	} {
		code, text, _ := answerTo(t, try.page, "/lock?"+try.query)
		require.Equal(t, try.code, code, try.query)
		require.Contains(t, text, try.want, try.query)
	}
}

// The address survives signing in, and tells nothing to those who have not.
func TestAddressAndAccess(t *testing.T) {
	t.Parallel()
	source := &asked{fake: newFake()}
	source.set(someLock("a b", 0))
	h := newPage(t, nil, page.WithPrefix("orders", source), page.WithRoot("/locks/"), page.WithHosts("locks.example"),
		page.WithTokens(viewing, "", false))
	code, _, location := answerTo(t, h, "http://localhost/locks/?prefix=orders&path=a+b")
	require.Equal(t, http.StatusSeeOther, code)
	require.Equal(t, "/locks/login?prefix=orders&path=a+b", location)
	_, _, location = answerTo(t, h, "http://localhost/locks/?"+url.QueryEscape("//evil.example"))
	require.Equal(t, "/locks/login?%2F%2Fevil.example", location, "it is of this page")
	for _, query := range []string{"prefix=orders&path=a+b", "prefix=other&path=a", "path=%zz"} {
		code, text, _ := answerTo(t, h, "http://localhost/locks/lock?"+query)
		require.Equal(t, http.StatusUnauthorized, code)
		require.NotContains(t, text, "orders")
		code, _, _ = answerTo(t, h, "http://evil.example/locks/?"+query)
		require.Equal(t, http.StatusMisdirectedRequest, code)
	}
}

// A release is of one prefix, which it names where there are several.
func TestReleaseNamesThePrefix(t *testing.T) {
	t.Parallel()
	orders, stock := newFake(), newFake()
	orders.set(someLock("a", 0))
	stock.set(someLock("a", 0))
	allowed := page.WithRelease(func(*http.Request) (string, bool) { return "ann", true })
	h := newPage(t, nil, page.WithPrefix("orders", orders), page.WithPrefix("stock", stock), allowed)
	release := func(body string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/release", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Lockreg-Request", "1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	code, text := release(`{"path":"a","holder":"r1:17"}`)
	require.Equal(t, http.StatusNotFound, code)
	require.Contains(t, text, "no prefix is given: this page shows orders, stock")
	code, _ = release(`{"prefix":"mail","path":"a","holder":"r1:17"}`)
	require.Equal(t, http.StatusNotFound, code)
	require.Empty(t, append(orders.released, stock.released...))
	code, _ = release(`{"prefixId":"stock","id":"a","holderId":"r1%3A17"}`)
	require.Equal(t, http.StatusOK, code)
	require.Empty(t, orders.released)
	require.Equal(t, []string{"a"}, stock.released)
}

func TestPrefixesThatCannotBe(t *testing.T) {
	t.Parallel()
	with := func(names ...string) (all []page.Option) {
		for _, name := range names {
			all = append(all, page.WithPrefix(name, newFake()))
		}
		return all
	}
	var many []string
	for i := range page.MostPrefixes + 1 {
		many = append(many, strconv.Itoa(i))
	}
	for want, options := range map[string][]page.Option{
		"a prefix is empty":              with(""),
		`the prefix "a" is given twice`:  with("a", "b", "a"),
		"it shows 32 prefixes at most":   with(many...),
		`the prefix "a" has no source`:   {page.WithPrefix("a", nil)},
		"give all of them by WithPrefix": with("a"),
	} {
		var source page.Source
		if strings.Contains(want, "WithPrefix") {
			source = newFake()
		}
		_, err := page.New(source, options...)
		require.ErrorContains(t, err, want)
	}
	h, err := page.New(nil, with(many[1:]...)...)
	require.NoError(t, err)
	h.Close()
}
