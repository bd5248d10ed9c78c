// Package web is what the daemon's HTTP interface has for every route: the list of them, the token, the description.
package web

import (
	_ "embed" // the description
	"net/http"

	"github.com/kvconn/kvconn/internal/daemon/httplimit"
	"github.com/kvconn/kvconn/internal/httpserve"
)

// OpenAPI describes the HTTP interface (OpenAPI 3.1). It is constant.
//
//go:embed openapi.yaml
var OpenAPI string

// Route is one pattern of the HTTP interface. openapi.yaml describes each.
type Route struct {
	Pattern string
	Handler http.Handler
	// Open needs no token.
	Open bool
	// Changes says that requests change what the daemon holds. Without a token they must come from this machine.
	Changes bool
	// Payloads says that what engines have saved goes out or in. It is served with a token alone: on the socket the daemon knows
	// who asks, on loopback it does not.
	Payloads bool
}

// Handler serves the routes: those that are not open to requests with the token alone, if there is one.
func Handler(routes []Route, token string) http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		switch {
		case token != "" && !r.Open:
			mux.Handle(r.Pattern, authorized(token, r.Handler))
		case r.Payloads:
			mux.Handle(r.Pattern, http.HandlerFunc(refusePayloads))
		case r.Changes:
			mux.Handle(r.Pattern, local(r.Handler))
		default:
			mux.Handle(r.Pattern, r.Handler)
		}
	}
	return httplimit.Timed(mux)
}

func refusePayloads(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "payloads are served with a token alone: set http_token, or stop the daemon and export or import with --dir", http.StatusForbidden)
}

// Challenge distinguishes a daemon that wants its token from a router.
const Challenge = `Bearer realm="kvconnd serve"`

// authorized lets requests with the token through.
func authorized(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !httpserve.HasToken(r, token) {
			w.Header().Set("WWW-Authenticate", Challenge)
			http.Error(w, "the bearer token is missing or wrong", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Description serves the description.
func Description() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write([]byte(OpenAPI)) // the client has gone
	})
}
