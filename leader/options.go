package leader

import (
	"cmp"
	"errors"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Options configure a [Leader].
type Options struct {
	// Namespace is the engine's.
	Namespace connector.NamespaceDigest
	// Manifest describes the namespace: block size, layer groups, ranks.
	Manifest *connector.Manifest
	// MinOfferTokens is the smallest offer made. Default 0: every hit counts.
	MinOfferTokens int
	// PromptsOnly ends the saves with the last block that lies wholly inside the prompt.
	// The default of false saves what decoding fills too: the next turn of a conversation
	// begins with it.
	PromptsOnly bool
	// LeaseTTL is how long an offer stays pinned unless it is taken. Default 30 s: an
	// engine under load may keep a request waiting for that long after its match, and a
	// longer pin only keeps dead requests' records from eviction.
	LeaseTTL time.Duration
	// LoadTTL is how long the records of a running load stay pinned. Default 60 s; it
	// has to be longer than the workers' load timeout.
	LoadTTL time.Duration
	// SaveTTL is how long a block whose save was planned counts as saved, so that no other
	// request plans it again. It counts for up to twice as long; then a save that was dropped
	// may be planned again. Default 5 s: far longer than a save takes.
	SaveTTL time.Duration
	// MaxRequests bounds the requests that are remembered; beyond it the one that was
	// touched least recently is forgotten and costs its hits. Default 16,384.
	MaxRequests int
	// MaxTokens bounds the tokens of all requests that are remembered, in the same way. Entries
	// of block tables count as tokens, and loads and spans as much as they take. Default
	// 32 Mi: 128 MiB, and about as much again for keys and proofs of blocks of 16 tokens.
	MaxTokens int

	// Levels are where loads come from, the fastest first: the price of a block is that of the
	// first that has it. With none all loads are free, and every offer is full.
	Levels []store.Level
	// PrefillTokensPerS is how many tokens the engine computes in a second; 0 means that
	// it is learnt from the engine's steps.
	PrefillTokensPerS float64
	// MinLearnTokens is the smallest step, in prompt tokens, that prefill speed is learnt
	// from. Default 256: below that a step's fixed cost outweighs its tokens.
	MinLearnTokens int
	// Probe, if not nil, is called while offers are cut for the speed of a level, at most once
	// in ProbeInterval: no load asks for anything then, and only a read that no engine waits for
	// can find out that a level has become faster. It must not block.
	Probe func()
	// ProbeInterval is the shortest time between two calls of Probe. Default 1 s.
	ProbeInterval time.Duration

	// Prefetch, if not nil, is told of what is offered as soon as it is, so that a request which waits in
	// the engine's queue finds its blocks in memory. The first of Levels is taken to be what it
	// reads into. With Handoff it is not used.
	Prefetch Prefetch

	// Handoff, if not nil, makes this the leader of an engine that has no way to report a
	// failed load: only blocks that are verified and pinned in the host tier are offered.
	Handoff Handoff
	// HandoffTimeout is how long a match waits for reads into the host tier. Default 50 ms: the
	// engine's scheduler stands still for that long, and a disk delivers some hundreds of
	// megabytes.
	HandoffTimeout time.Duration

	// Arrived, if not nil, is told of each request that saves, at its first match, with the keys of its prompt's full blocks, and
	// Ended gets what it returned, and how much of the answer is known. They must not block, and keep nothing.
	Arrived func(promptTokens int, keys []connector.Key) (arrival uint64)
	Ended   func(arrival uint64, answerTokens int)

	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.LeaseTTL = cmp.Or(o.LeaseTTL, 30*time.Second)
	o.LoadTTL = cmp.Or(o.LoadTTL, time.Minute)
	o.SaveTTL = cmp.Or(o.SaveTTL, 5*time.Second)
	o.ProbeInterval = cmp.Or(o.ProbeInterval, time.Second)
	o.HandoffTimeout = cmp.Or(o.HandoffTimeout, 50*time.Millisecond)
	o.MaxRequests = cmp.Or(o.MaxRequests, 16384)
	o.MaxTokens = cmp.Or(o.MaxTokens, 32<<20)
	o.MinLearnTokens = cmp.Or(o.MinLearnTokens, 256)
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Manifest == nil:
		return errors.New("leader: no manifest")
	case o.LeaseTTL <= 0 || o.LoadTTL <= 0 || o.SaveTTL <= 0:
		return errors.New("leader: times to live must be positive")
	case o.ProbeInterval <= 0 || o.HandoffTimeout <= 0:
		return errors.New("leader: probe interval and handoff timeout must be positive")
	case o.MaxRequests < 1 || o.MaxTokens < connector.MaxTokens:
		return errors.New("leader: max requests must be positive, max tokens at least those of one prompt")
	case o.MinOfferTokens < 0 || o.MinLearnTokens < 1 || o.PrefillTokensPerS < 0:
		return errors.New("leader: minimum offer and prefill speed must not be negative, tokens to learn from positive")
	}
	return o.Manifest.Validate()
}
