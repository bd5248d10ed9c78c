package feed

import (
	"context"
	"errors"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Predictor takes in what is only thought to be somewhere. A prefix.Index is one. What is predicted is
// kept apart from what events say, and bounded by the index.
type Predictor interface {
	// Predict says that h is expected to have the blocks of keys, a prompt from its beginning, until
	// deadline.
	Predict(h Holder, keys []connector.Key, deadline time.Time) error
	// Expire forgets the predictions whose deadline has come, and returns how many.
	Expire(now time.Time) int
}

// ApproximateOptions configure an [Approximate].
type ApproximateOptions struct {
	// TTL is how long a routed prompt counts as cached. Default 2 minutes, as other routers without
	// events assume. As a bridge until an engine's events arrive, a few seconds are enough.
	TTL time.Duration
	// Interval is how often expired ones are forgotten. Default a twentieth of TTL, at least 100 ms.
	Interval time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// EnsureDefaults fills in what is not set.
func (o *ApproximateOptions) EnsureDefaults() {
	setDefault(&o.TTL, 2*time.Minute)
	setDefault(&o.Interval, max(o.TTL/20, 100*time.Millisecond))
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Validate reports the first option that cannot be used.
func (o *ApproximateOptions) Validate() error {
	if o.TTL <= 0 || o.Interval <= 0 {
		return errors.New("feed: TTL and interval must be positive")
	}
	return nil
}

// Approximate assumes that a rank caches what was routed to it: the feed of engines without events.
type Approximate struct {
	opts  ApproximateOptions
	index Predictor
}

// NewApproximate makes a feed that writes to index.
func NewApproximate(o ApproximateOptions, index Predictor) (*Approximate, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Approximate{opts: o, index: index}, nil
}

// Routed notes that a prompt of these block keys, from its beginning on, went to h. It may be called from
// several goroutines.
func (a *Approximate) Routed(h Holder, keys []connector.Key) error {
	if len(keys) == 0 {
		return nil
	}
	return a.index.Predict(h, keys, a.opts.Now().Add(a.opts.TTL))
}

// Run forgets what has expired until ctx ends.
func (a *Approximate) Run(ctx context.Context) error {
	for sleep(ctx, a.opts.Interval) {
		a.index.Expire(a.opts.Now())
	}
	return nil
}
