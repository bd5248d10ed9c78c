package httplimit

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/kvconn/kvconn/internal/httpserve"
)

const (
	// stopTimeout bounds how long running requests hold up the stop.
	stopTimeout = 2 * time.Second
	// readTimeout bounds the reading of a request, idleTimeout the wait for the next one:
	// people and monitoring send a few hundred bytes.
	readTimeout = 5 * time.Second
	idleTimeout = time.Minute
	// writeTimeout bounds an answer of [Timed].
	writeTimeout = 30 * time.Second
	// headerBytes bounds a request.
	headerBytes = 16 << 10
)

// Server is an HTTP server whose connections are bounded. It listens before it serves.
type Server struct {
	*guard
	listener *listener
	server   *http.Server
}

// NewServer returns a server of h on l with at most conns connections. It owns l.
func NewServer(l net.Listener, conns int, h http.Handler, log *slog.Logger) *Server {
	g := &guard{shares: NewShares(conns), conns: make(map[*conn]struct{})}
	return &Server{guard: g, listener: &listener{Listener: l, guard: g, peers: newPeers()}, server: &http.Server{
		// No ReadTimeout: it would end the context of answers that take longer.
		Handler: h, ReadHeaderTimeout: readTimeout, IdleTimeout: idleTimeout, ConnState: g.moved, ConnContext: withClient,
		MaxHeaderBytes: headerBytes, ErrorLog: slog.NewLogLogger(log.With("of", "HTTP").Handler(), slog.LevelWarn),
	}}
}

// Serve serves until ctx ends, and closes the listener. If there are no descriptors left it waits
// a moment and tries again.
func (s *Server) Serve(ctx context.Context) error {
	_, err := httpserve.Serve(ctx, s.server, s.listener, stopTimeout, nil)
	return err
}

// Close closes the listener of a server that does not serve.
func (s *Server) Close() error { return s.listener.Close() }

// Timed bounds the time of an answer: a client that reads nothing holds nothing.
func Timed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // a recorder of tests has none
		h.ServeHTTP(w, r)
	})
}
