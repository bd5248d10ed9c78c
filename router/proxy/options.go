package proxy

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/route"
)

// Router decides and takes reports: a route.Router.
type Router interface {
	Route(ctx context.Context, req *route.Request, d *route.Decision) error
	PrefillDone(handle uint64) bool
	Output(handle uint64, tokens int) bool
	Finish(handle uint64) bool
}

// Observer is told how long requests take, from their arrival on, by the model that they name.
type Observer interface {
	// FirstToken tells of the first byte of a streamed answer.
	FirstToken(model string, took time.Duration)
	// Answered tells of the end of an answer that is no error.
	Answered(model string, took time.Duration)
}

// unobserved is the observer that is not there.
type unobserved struct{}

func (unobserved) FirstToken(string, time.Duration) {}
func (unobserved) Answered(string, time.Duration)   {}

// Options configure a [Proxy].
type Options struct {
	// Router decides. Reader reads requests.
	Router Router
	Reader *front.Reader
	// Failed is called when a rank cannot be reached or broke off; may be nil.
	Failed func(rank int32, err error)
	// Check asks a rank that answered with an error of its own whether it is well, within a few seconds.
	// If it is not, another is tried. Nil blames the request for all such answers.
	Check func(ctx context.Context, rank int32) error
	// Observer, if not nil, is told how long answers took.
	Observer Observer
	// Spans makes the spans of requests; nil makes none.
	Spans *spans.Router
	// MaxTries is how many ranks are tried for one request. Default 3.
	MaxTries int
	// FirstByteTimeout is how long a rank may take until the first byte of its answer, waiting and
	// prefill included. Default 5 min. IdleTimeout is the same for each byte after it, and for a
	// client that reads nothing. Default 2 min.
	FirstByteTimeout, IdleTimeout time.Duration
	// KeepAuthorization passes the client's Authorization header on; else EngineKey is sent as
	// bearer token, if there is one.
	KeepAuthorization bool
	EngineKey         string
	// Transport makes the requests. Default: one that connects within 3 s.
	Transport http.RoundTripper
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// connectTimeout bounds connecting to an engine: it is in the same data centre.
const connectTimeout = 3 * time.Second

// NewTransport makes a transport for engines: many connections to few hosts, no compression of its own.
func NewTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     time.Minute,
		TLSHandshakeTimeout: connectTimeout,
		DisableCompression:  true,
	}
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.Failed == nil {
		o.Failed = func(int32, error) {}
	}
	o.Observer = cmp.Or[Observer](o.Observer, unobserved{})
	o.MaxTries = cmp.Or(o.MaxTries, 3)
	o.FirstByteTimeout = cmp.Or(o.FirstByteTimeout, 5*time.Minute)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 2*time.Minute)
	if o.Transport == nil {
		o.Transport = NewTransport()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Router == nil || o.Reader == nil:
		return errors.New("proxy: router and reader must be given")
	case o.MaxTries < 1:
		return errors.New("proxy: bounds must be positive")
	case o.FirstByteTimeout < 0 || o.IdleTimeout < 0:
		return errors.New("proxy: timeouts must be positive")
	}
	return CheckKey(o.EngineKey)
}

// CheckKey reports a key of engines that cannot stand in a header: no request with it would reach one.
func CheckKey(key string) error {
	if strings.ContainsFunc(key, front.IsControl) {
		return errors.New("the engines' key has a line break or another control character")
	}
	return nil
}
