package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/httplimit"
)

const (
	// httpStopTimeout bounds how long running HTTP requests hold up the stop.
	httpStopTimeout = 2 * time.Second
	// httpReadTimeout bounds the reading of a request, httpIdleTimeout the wait for the next
	// one: people and monitoring send a few hundred bytes.
	httpReadTimeout = 5 * time.Second
	httpIdleTimeout = time.Minute
	// httpWriteTimeout bounds an answer, but for those without an end.
	httpWriteTimeout = 30 * time.Second
	// httpHeaderBytes bounds a request.
	httpHeaderBytes = 16 << 10
	// httpConns bounds the connections: routers, monitoring and people of one node.
	httpConns = 128
	// pprofConns bounds those for profiles.
	pprofConns = 8
)

// httpServer is an HTTP interface: it listens from the start on, and serves.
type httpServer struct {
	listener net.Listener
	guard    *httplimit.Guard
	server   *http.Server
}

// newHTTPServer makes the interface on l, which has at most conns connections.
func newHTTPServer(l net.Listener, conns int, h http.Handler, log *slog.Logger) *httpServer {
	s := &httpServer{guard: httplimit.NewGuard(conns), server: &http.Server{
		// No ReadTimeout: it would end the context of answers that take longer.
		Handler: h, ReadHeaderTimeout: httpReadTimeout, IdleTimeout: httpIdleTimeout,
		MaxHeaderBytes: httpHeaderBytes, ErrorLog: slog.NewLogLogger(log.With("of", "HTTP").Handler(), slog.LevelWarn),
	}}
	s.listener = s.guard.Listen(l)
	s.guard.Watch(s.server)
	return s
}

// serve serves until ctx ends.
func (s *httpServer) serve(ctx context.Context) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		shutdown, cancel := context.WithTimeout(context.Background(), httpStopTimeout)
		defer cancel()
		if err := s.server.Shutdown(shutdown); err != nil {
			_ = s.server.Close()
		}
	})
	// Where there are no descriptors left it waits a moment and tries again.
	err := s.server.Serve(s.listener)
	if !stop() {
		<-stopped // Serve returns as soon as the stop begins
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// bounded ends answers in time: a client that reads nothing holds nothing.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(httpWriteTimeout)) // a recorder of tests has none
		h.ServeHTTP(w, r)
	})
}

// listenPprof listens for requests of profiles, on loopback and nowhere else: a client can
// slow the daemon down and see what it does.
func listenPprof(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for profiles on %s: %w", addr, err)
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return nil, errors.Join(fmt.Errorf("pprof %q is not loopback: give an address such as 127.0.0.1:6060", addr), l.Close())
	}
	return l, nil
}

// pprofHandler serves Go's profiles below /debug/pprof/.
func pprofHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
