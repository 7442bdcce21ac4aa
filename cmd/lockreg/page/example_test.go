package page_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
)

// The page on a mux, behind the program's own login.
func Example() {
	locks := newFake() // in a program it is inspect.Of(registry)
	userOf := func(r *http.Request) string { return r.Header.Get("X-User") }
	mayRelease := func(r *http.Request) bool { return userOf(r) == "ann" }
	requireLogin := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if userOf(r) == "" {
				http.Error(w, "log in first", http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	mux := http.NewServeMux()
	run := func() error {
		handler, err := page.New(locks,
			page.WithRoot("/admin/locks/"),
			page.WithRelease(func(r *http.Request) (string, bool) { return userOf(r), mayRelease(r) }))
		if err != nil {
			return err
		}
		defer handler.Close() // before the server's Shutdown, which waits for streams
		mux.Handle("/admin/locks/", requireLogin(handler))

		for _, user := range []string{"", "ann"} {
			r := httptest.NewRequest(http.MethodGet, "/admin/locks/", nil)
			r.Header.Set("X-User", user)
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r)
			fmt.Println(w.Code)
		}
		return nil
	}
	if err := run(); err != nil {
		panic(err)
	}
	// Output:
	// 401
	// 200
}
