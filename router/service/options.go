package service

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/kvconn/kvconn/router/proxy"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

// Options configure [Run].
type Options struct {
	// HTTP is the address to listen on; Listener, if set, is listened on instead.
	HTTP     string
	Listener net.Listener
	// Token, if set, has to come as bearer token with every request but those for health and the
	// description. EngineKey is sent to engines as such; without both the client's own is passed on.
	Token, EngineKey string
	// Policy decides, Route is the rest of the decisions' options.
	Policy route.PolicyOptions
	Route  route.Options
	// Ranks are those known from the beginning.
	Ranks []registry.Rank
	// HealthPath is asked of every endpoint each HealthInterval, for HealthTimeout. One that fails is
	// asked again after HealthBackoff, then after twice as long, up to ten seconds. Defaults /health,
	// 5 s, 3 s and 500 ms; a negative interval means no checks: all ranks are taken for ready.
	HealthPath                                   string
	HealthInterval, HealthTimeout, HealthBackoff time.Duration
	// TokenizeTimeout is how long engines may take to tokenize a prompt; then load alone decides.
	// Default 2 s.
	TokenizeTimeout time.Duration
	// MaxBodyBytes, MaxTries, FirstByteTimeout and IdleTimeout are those of proxy.Options.
	MaxBodyBytes                  int64
	MaxTries                      int
	FirstByteTimeout, IdleTimeout time.Duration
	// DrainTimeout is how long a stop waits for requests under way. Default 25 s.
	DrainTimeout time.Duration
	// Transport makes requests to engines; nil is a default one.
	Transport http.RoundTripper
	// Version is told to people.
	Version string
	// Ready, if set, is called with the address once it is listened on.
	Ready func(addr string)
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// maxHealthBackoff bounds the time between checks of an endpoint that fails.
const maxHealthBackoff = 10 * time.Second

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.HealthPath == "" {
		o.HealthPath = "/health"
	}
	setDefault(&o.HealthInterval, 5*time.Second)
	setDefault(&o.HealthTimeout, 3*time.Second)
	setDefault(&o.HealthBackoff, 500*time.Millisecond)
	setDefault(&o.TokenizeTimeout, 2*time.Second)
	setDefault(&o.DrainTimeout, 25*time.Second)
	setDefault(&o.MaxBodyBytes, 64<<20)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Route.Logger == nil {
		o.Route.Logger = o.Logger
	}
	o.Route.AssumeReady = o.HealthInterval < 0
	o.Route.EnsureDefaults()
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.HTTP == "" && o.Listener == nil:
		return errors.New("service: no address to listen on")
	case o.HealthTimeout < 0 || o.HealthBackoff < 0 || o.TokenizeTimeout < 0 || o.DrainTimeout < 0:
		return errors.New("service: times must be positive")
	case o.HealthPath[0] != '/':
		return errors.New("service: the health path must begin with /")
	}
	return errors.Join(proxy.CheckKey(o.EngineKey), o.Route.Validate())
}
