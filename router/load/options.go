package load

import (
	"errors"
	"time"
)

// Options configure a [Tracker].
type Options struct {
	// AssumeKVReuse says that requests on one rank with equal leading blocks share them while they
	// decode, so that a block is counted once however many requests hold it. Off, every block of
	// every request counts, as on engines that keep a copy for each.
	AssumeKVReuse bool
	// BlockSize is the number of tokens in a block. Default 16.
	BlockSize int
	// TTL is how long after the last word of a request it is taken for lost. Default 300 s, the
	// figure routers in production use.
	TTL time.Duration
	// RecentHalfLife is the time in which [Rank.RecentTokens] halves when nothing is placed.
	// Default 10 min: long against a prefill, short against a change of the traffic.
	RecentHalfLife time.Duration
	// MaxRequests bounds the requests in flight. Default 65,536.
	MaxRequests int
	// MaxKeys bounds the block keys that are kept for shared counting; blocks beyond it are counted
	// as if nobody shared them. Default 4 Mi.
	MaxKeys int
	// MaxRanks bounds the ranks. Default 4,096.
	MaxRanks int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.BlockSize == 0 {
		o.BlockSize = 16
	}
	if o.TTL == 0 {
		o.TTL = 300 * time.Second
	}
	if o.RecentHalfLife == 0 {
		o.RecentHalfLife = 10 * time.Minute
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = 65536
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = 4 << 20
	}
	if o.MaxRanks == 0 {
		o.MaxRanks = 4096
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.BlockSize < 1:
		return errors.New("load: block size must be positive")
	case o.TTL <= 0:
		return errors.New("load: TTL must be positive")
	case o.RecentHalfLife <= 0:
		return errors.New("load: half-life of recent tokens must be positive")
	case o.MaxRequests < 1 || o.MaxKeys < 0 || o.MaxRanks < 1:
		return errors.New("load: bounds on requests and ranks must be positive, the one on keys not negative")
	}
	return nil
}
