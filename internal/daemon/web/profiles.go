package web

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
)

// ProfileConnections bounds the connections for profiles.
const ProfileConnections = 8

// ListenProfiles listens for requests for profiles, on loopback only: a client can slow the daemon
// down and see what it does.
func ListenProfiles(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for profiles on %s: %w", addr, err)
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return nil, errors.Join(fmt.Errorf("pprof %q is not loopback: give an address such as 127.0.0.1:6060", addr), l.Close())
	}
	return l, nil
}

// Profiles serves profiles of the process.
func Profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
