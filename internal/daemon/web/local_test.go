package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

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
