package leader

import (
	"errors"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Options configure a [Leader].
type Options struct {
	// Namespace is the store's number of the engine's namespace, Digest its identity.
	Namespace store.NamespaceID
	Digest    connector.NamespaceDigest
	// Manifest describes the namespace: block size, layer groups, ranks.
	Manifest *connector.Manifest
	// MinOfferTokens is the smallest offer made. Default 0: every hit counts.
	MinOfferTokens int
	// LeaseTTL is how long an offer stays pinned unless it is taken. Default 30 s: an
	// engine under load may keep a request waiting for that long after its match, and a
	// longer pin only keeps dead requests' records from eviction.
	LeaseTTL time.Duration
	// LoadTTL is how long the records of a running load stay pinned. Default 60 s; it
	// has to be longer than the workers' load timeout.
	LoadTTL time.Duration
	// MaxRequests bounds the requests that are remembered; beyond it the one that was
	// touched least recently is forgotten and costs its hits. Default 16,384.
	MaxRequests int
	// MaxTokens bounds the tokens of all requests that are remembered, likewise. Default
	// 32 Mi: 128 MiB, and half as much again for keys and proofs.
	MaxTokens int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.LeaseTTL == 0 {
		o.LeaseTTL = 30 * time.Second
	}
	if o.LoadTTL == 0 {
		o.LoadTTL = time.Minute
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = 16384
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 32 << 20
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Manifest == nil:
		return errors.New("leader: no manifest")
	case o.LeaseTTL <= 0 || o.LoadTTL <= 0:
		return errors.New("leader: lease times must be positive")
	case o.MaxRequests < 1 || o.MaxTokens < connector.MaxTokens:
		return errors.New("leader: max requests must be positive, max tokens at least those of one prompt")
	}
	return nil
}
