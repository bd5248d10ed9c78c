package service

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/router/discover"
	"github.com/kvconn/kvconn/router/policy/byname"
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
	// description. EngineKey is sent to engines as bearer token; without both the client's own is passed on.
	Token, EngineKey string
	// Policy decides, Route is the rest of the decisions' options.
	Policy byname.Options
	Route  route.Options
	// Ranks are those known from the beginning, Discovery finds others. Those without a node that are on this machine get
	// Discovery's.
	Ranks     []registry.Rank
	Discovery discover.Options
	// HealthPath is requested from every endpoint each HealthInterval, within HealthTimeout. One that fails
	// is checked again after HealthBackoff, then after twice as long, up to ten seconds. Defaults /health,
	// 5 s, 3 s and 500 ms; a negative interval means no checks: all ranks count as ready.
	HealthPath                                   string
	HealthInterval, HealthTimeout, HealthBackoff time.Duration
	// TokenizeTimeout is how long engines may take to tokenize a prompt; then load alone decides.
	// Default 2 s.
	TokenizeTimeout time.Duration
	// MaxBodyBytes bounds a request. Default 64 MiB.
	MaxBodyBytes int64
	// MaxTries, FirstByteTimeout and IdleTimeout are those of proxy.Options.
	MaxTries                      int
	FirstByteTimeout, IdleTimeout time.Duration
	// DrainTimeout bounds a stop: requests under way have that long. In the first DrainDelay of it the router
	// goes on accepting, but is not ready, so that balancers can learn of the stop. Defaults 25 s and 5 s; a
	// negative delay is none, and half of DrainTimeout the longest.
	DrainTimeout, DrainDelay time.Duration
	// RankMetrics adds a series for each rank to the metrics.
	RankMetrics bool
	// Spans, if set, says where traces of forwarded requests are sent. Its logger, service and instance are set here.
	Spans *spans.Options
	// Version is shown in /v1/status.
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
	o.Policy.Name = cmp.Or(o.Policy.Name, "cost")
	o.HealthPath = cmp.Or(o.HealthPath, "/health")
	o.HealthInterval = cmp.Or(o.HealthInterval, 5*time.Second)
	o.HealthTimeout = cmp.Or(o.HealthTimeout, 3*time.Second)
	o.HealthBackoff = cmp.Or(o.HealthBackoff, 500*time.Millisecond)
	o.TokenizeTimeout = cmp.Or(o.TokenizeTimeout, 2*time.Second)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 25*time.Second)
	o.DrainDelay = cmp.Or(o.DrainDelay, 5*time.Second)
	// 2 Mi token ids as JSON, several times.
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, 64<<20)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Route.Logger == nil {
		o.Route.Logger = o.Logger
	}
	if o.Discovery.Logger == nil {
		o.Discovery.Logger = o.Logger
	}
	o.Discovery.EnsureDefaults()
	o.Route.AssumeReady = o.HealthInterval < 0
	o.Route.EnsureDefaults()
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.HTTP == "" && o.Listener == nil:
		return errors.New("service: no address to listen on")
	case o.HealthTimeout < 0 || o.HealthBackoff < 0 || o.TokenizeTimeout < 0 || o.DrainTimeout < 0:
		return errors.New("service: times must be positive")
	case o.MaxBodyBytes < 1:
		return errors.New("service: the bound on bodies must be positive")
	case o.HealthPath[0] != '/':
		return errors.New("service: the health path must begin with /")
	}
	_, err := byname.New(o.Policy)
	return errors.Join(err, proxy.CheckKey(o.EngineKey), o.Route.Validate(), o.Discovery.Validate())
}
