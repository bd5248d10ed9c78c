package web

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// local lets requests through that come over loopback and ask for loopback. A page in a browser of this machine, under a
// name that its owner has made point here, does not.
func local(next http.Handler) http.Handler {
	next = http.NewCrossOriginProtection().Handler(next) // nor does one under a name of its own
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopback(r.RemoteAddr) || !isLoopback(r.Host) {
			http.Error(w, "without http_token only requests over loopback, to 127.0.0.1, [::1] or localhost, may change anything",
				http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopback reports whether an address, with a port or without, is a loopback one.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
