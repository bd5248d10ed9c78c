package httpserve

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// bearer is how a header begins that has a token.
const bearer = "Bearer "

// HasToken reports whether a request has the bearer token. The comparison takes the same time for any input.
func HasToken(r *http.Request, token string) bool {
	given, _ := strings.CutPrefix(r.Header.Get("Authorization"), bearer)
	want, got := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// Client returns a client that sends the bearer token with each request, none if it is empty. It follows no redirects, which
// could carry the token elsewhere.
func Client(token string) *http.Client {
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if token != "" {
		c.Transport = tokenTransport{token}
	}
	return c
}

// tokenTransport adds a token to requests.
type tokenTransport struct{ token string }

// RoundTrip implements [http.RoundTripper].
func (t tokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", bearer+t.token)
	return http.DefaultTransport.RoundTrip(r)
}
