package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// A page of another site that a browser of this machine shows can send requests over loopback, too.
func TestPagesOfOthersChangeNothing(t *testing.T) {
	h := Handler([]Route{{Pattern: "POST /x", Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), Changes: true}}, "")
	for origin, want := range map[string]int{"": 200, "http://127.0.0.1:9477": 200, "https://evil.example": 403, "null": 403} {
		r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:9477/x", nil)
		r.RemoteAddr = "127.0.0.1:5"
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%q: %d", origin, w.Code)
		}
	}
}

func TestChangesNeedTheTokenOrLoopback(t *testing.T) {
	done := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for _, c := range []struct {
		token, given, from, host string
		want                     int
	}{
		{"", "", "127.0.0.1:5", "127.0.0.1:9477", 200},
		{"", "", "[::1]:5", "localhost:9477", 200},
		{"", "", "[::ffff:127.0.0.1]:5", "[::1]", 200},
		{"", "", "10.0.0.1:5", "127.0.0.1:9477", 403},
		{"", "", "127.0.0.1:5", "evil.example:9477", 403}, // a name that was made to point here
		{"", "", "127.0.0.1:5", "127.0.0.1.evil.example", 403},
		{"", "", "", "", 403},
		{"secret", "secret", "10.0.0.1:5", "node:9477", 200},
		{"secret", "", "127.0.0.1:5", "127.0.0.1:9477", 401},
		{"secret", "wrong", "127.0.0.1:5", "127.0.0.1:9477", 401},
	} {
		h := Handler([]Route{{Pattern: "DELETE /x", Handler: done, Changes: true}}, c.token)
		r := httptest.NewRequest(http.MethodDelete, "/x", nil)
		r.RemoteAddr, r.Host = c.from, c.host
		if c.given != "" {
			r.Header.Set("Authorization", "Bearer "+c.given)
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("%+v: %d", c, w.Code)
		}
	}
}
