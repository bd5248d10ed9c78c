package route

import (
	"cmp"
	"errors"
	"log/slog"
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
	// PredictTTL is how long a prompt that was routed counts as in the rank's GPU while its events are on their
	// way: from when it is routed, and again as long as it waits for its prefill. Default 5 s.
	PredictTTL time.Duration
	// ApproximateTTL is the same for ranks without events. Default 2 min, as other routers assume.
	ApproximateTTL time.Duration
	// MaxPromptTokens bounds a prompt. Default 2 Mi.
	MaxPromptTokens int
	// MaxRanks bounds the ranks of all models. Default 4,096.
	MaxRanks int
	// AssumeReady makes new ranks ready at once; else they wait for SetReady.
	AssumeReady bool
	// NodeToken is the bearer token of the nodes' kvconnds, empty if they have none.
	NodeToken string
	// NodeInterval is how often a node's kvconnd is asked for its measured speed. Default 10 s.
	NodeInterval time.Duration
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
	o.MaxPromptTokens = cmp.Or(o.MaxPromptTokens, 2<<20)
	o.MaxRanks = cmp.Or(o.MaxRanks, 4096)
	o.NodeInterval = cmp.Or(o.NodeInterval, 10*time.Second)
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
	case o.PredictTTL < 0 || o.ApproximateTTL < 0 || o.NodeInterval < 0:
		return errors.New("route: times must be positive")
	case o.MaxPromptTokens < 1 || o.MaxPromptTokens > maxPrompt:
		return errors.New("route: the bound on prompts must be 1 to 268,435,456 tokens")
	case o.MaxRanks < 1:
		return errors.New("route: bounds must be positive")
	}
	return errors.Join(o.Index.Validate(), o.Load.Validate())
}
