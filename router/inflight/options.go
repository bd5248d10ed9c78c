package inflight

import (
	"cmp"
	"errors"
	"time"
)

// Options configure a [Tracker].
type Options struct {
	// AssumeKVReuse says that requests on one rank with equal leading blocks share them while they
	// decode: a block counts once, however many requests hold it. If it is false every block of every
	// request counts, as on engines that keep a copy for each.
	AssumeKVReuse bool
	// BlockSize is the number of tokens in a block. Default 16.
	BlockSize int
	// TTL is how long after its last report a request is given up as lost. Default 300 s, as routers
	// in production have it.
	TTL time.Duration
	// MaxRequests bounds the requests in flight. Default 65,536.
	MaxRequests int
	// MaxRanks bounds the ranks. Default 4,096.
	MaxRanks int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.BlockSize = cmp.Or(o.BlockSize, 16)
	o.TTL = cmp.Or(o.TTL, 300*time.Second)
	o.MaxRequests = cmp.Or(o.MaxRequests, 65536)
	o.MaxRanks = cmp.Or(o.MaxRanks, 4096)
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.BlockSize < 1:
		return errors.New("inflight: block size must be positive")
	case o.TTL <= 0:
		return errors.New("inflight: TTL must be positive")
	case o.MaxRequests < 1 || o.MaxRanks < 1:
		return errors.New("inflight: bounds on requests and ranks must be positive")
	}
	return nil
}
