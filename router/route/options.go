package route

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/prefix"
)

// Options configure a [Router].
type Options struct {
	// Policy makes the policy of a model; it is called once for each. Nil means the policy cost.
	Policy func() policy.Policy
	// Index bounds the prefix index that all models share, Load what is tracked for each.
	Index prefix.Options
	Load  inflight.Options
	// PredictTTL is how long a prompt that was just routed counts as in the rank's GPU while its events
	// are on their way. Default 5 s: longer than a long prompt waits and is computed.
	PredictTTL time.Duration
	// ApproximateTTL is the same for ranks without events. Default 2 min, as other routers assume.
	ApproximateTTL time.Duration
	// BalanceGrace is the time in which a rank may compute more than others before the policy cost
	// charges it for that in full: this much prefill is added to the recent work of every rank. Without
	// it the first requests of a router that is new or idle would decide, and a conversation's second
	// turn would leave the rank that has its prefix. Default 60 s.
	BalanceGrace time.Duration
	// MaxPromptTokens bounds a prompt. Default 2 Mi.
	MaxPromptTokens int
	// MaxRanks bounds the ranks of all models. Default 4,096.
	MaxRanks int
	// SharedBlocks is how many of a prompt's first blocks are counted once on each rank if
	// Load.AssumeKVReuse is set: each costs tens of nanoseconds when a request is placed. Default 1,024.
	SharedBlocks int
	// AssumeReady makes new ranks ready at once; else they wait for SetReady.
	AssumeReady bool
	// NodeInterval is how often a node's kvconnd is asked for its measured speed. Default 10 s.
	NodeInterval time.Duration
	// Client asks nodes; nil means one with a timeout of 5 s.
	Client *http.Client
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.Policy == nil {
		o.Policy = func() policy.Policy { return policy.NewCost(policy.CostOptions{}) }
	}
	o.PredictTTL = cmp.Or(o.PredictTTL, 5*time.Second)
	o.ApproximateTTL = cmp.Or(o.ApproximateTTL, 2*time.Minute)
	o.BalanceGrace = cmp.Or(o.BalanceGrace, time.Minute)
	o.MaxPromptTokens = cmp.Or(o.MaxPromptTokens, 2<<20)
	o.MaxRanks = cmp.Or(o.MaxRanks, 4096)
	o.SharedBlocks = cmp.Or(o.SharedBlocks, 1024)
	o.NodeInterval = cmp.Or(o.NodeInterval, 10*time.Second)
	if o.Client == nil {
		o.Client = &http.Client{Timeout: 5 * time.Second}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Index.EnsureDefaults()
	if o.Load.Now == nil {
		o.Load.Now = o.Now
	}
	o.Load.EnsureDefaults()
}

// maxPrompt is the largest bound on prompts; the load tracker's sums stay in range.
const maxPrompt = 1 << 28

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.PredictTTL < 0 || o.ApproximateTTL < 0 || o.NodeInterval < 0 || o.BalanceGrace < 0:
		return errors.New("route: times must be positive")
	case o.MaxPromptTokens < 1 || o.MaxPromptTokens > maxPrompt:
		return errors.New("route: the bound on prompts must be 1 to 268,435,456 tokens")
	case o.MaxRanks < 1 || o.SharedBlocks < 0:
		return errors.New("route: bounds must be positive")
	}
	return errors.Join(o.Index.Validate(), o.Load.Validate())
}
