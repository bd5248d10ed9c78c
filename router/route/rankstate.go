package route

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/router/registry"
)

// rankState is a registered rank.
type rankState struct {
	id     int32
	spec   atomic.Pointer[registry.Rank]
	pool   *pool
	gpu    prefix.Holder
	ready  atomic.Bool
	why    atomic.Pointer[string] // why it is not ready
	events *feed.Rank             // nil without events
	stop   context.CancelFunc
	done   chan struct{} // closed when events has ended
	// disk and object are where the rank loads from, nil if nowhere.
	disk, object *source
	// prefill is the learnt speed, tokens a second; 0 is unknown.
	prefill atomicFloat
	// samples counts, for a rank without events, the samples that were faster than the known speed.
	samples atomic.Int64
}

// atomicFloat is a float64 that goroutines share.
type atomicFloat struct{ bits atomic.Uint64 }

func (f *atomicFloat) load() float64   { return math.Float64frombits(f.bits.Load()) }
func (f *atomicFloat) store(v float64) { f.bits.Store(math.Float64bits(v)) }

// selectable says whether the rank may get requests.
func (r *rankState) selectable() bool { return r.ready.Load() && !r.spec.Load().Draining }

// speeds are the given speeds, and the learnt ones where none is given.
func (r *rankState) speeds() policy.Speeds {
	v := r.spec.Load().Speeds
	if v.PrefillTokens == 0 {
		v.PrefillTokens = r.prefill.load()
	}
	for _, from := range [...]struct {
		source *source
		bytes  *float64
	}{{r.disk, &v.DiskBytes}, {r.object, &v.ObjectBytes}} {
		if from.source == nil {
			continue
		}
		if *from.bytes == 0 {
			*from.bytes = from.source.speed.load()
		}
		if v.BytesPerToken == 0 {
			v.BytesPerToken = from.source.bytesPerToken.load()
		}
	}
	if r.object != nil { // of a disk it is nothing beside a prefill
		v.ObjectDelay = r.object.latency.load()
	}
	return v
}

const (
	// minSampleTokens is the shortest prefill that the speed is learnt from, sampleWeight the weight of
	// the newest sample.
	minSampleTokens = 256
	sampleWeight    = 0.2
	// An engine without events may have had more of a prompt than the router knows, and seem to be fast:
	// then a faster sample counts little, and at most fasterMost times the known speed. The first few are
	// exempt: an engine is slow at its very first prompts.
	fasterWeight = 0.02
	fasterMost   = 4
	firstSamples = 8
)

// learnPrefill learns from a prefill of a number of tokens that no other request delayed.
func (r *rankState) learnPrefill(tokens int32, seconds float64) {
	if tokens < minSampleTokens || !(seconds > 0) {
		return
	}
	speed, known := float64(tokens)/seconds, r.prefill.load()
	switch {
	case known > 0 && speed > known && r.events == nil && r.samples.Add(1) > firstSamples:
		speed = known + fasterWeight*(min(speed, fasterMost*known)-known)
	case known > 0:
		speed = known + sampleWeight*(speed-known)
	}
	r.prefill.store(speed)
}

// withSpec is the rank with another description that keeps its events, pool and stores.
func (r *rankState) withSpec(spec *registry.Rank) *rankState {
	s := &rankState{id: r.id, pool: r.pool, gpu: r.gpu, events: r.events, stop: r.stop, done: r.done, disk: r.disk, object: r.object}
	s.spec.Store(spec)
	s.ready.Store(r.ready.Load())
	s.why.Store(r.why.Load())
	s.prefill.store(r.prefill.load())
	s.samples.Store(r.samples.Load())
	return s
}

// sameEvents says whether a rank's events and blocks mean the same with both descriptions.
func sameEvents(a, b *registry.Rank) bool {
	return (a.Events == b.Events || a.Events != nil && b.Events != nil && *a.Events == *b.Events) &&
		a.Model == b.Model && a.Engine.Scheme() == b.Engine.Scheme() && a.BlockSize == b.BlockSize && a.DPRank == b.DPRank &&
		a.HashDomain == b.HashDomain
}

// sameDisk and sameObject say whether a rank loads from the same store with both descriptions.
func sameDisk(a, b *registry.Rank) bool {
	return a.Node == b.Node && a.NodeURL == b.NodeURL && a.CacheModel == b.CacheModel && a.Namespace == b.Namespace
}

func sameObject(a, b *registry.Rank) bool {
	return a.Bucket == b.Bucket && a.BucketURL == b.BucketURL && a.CacheModel == b.CacheModel && a.Namespace == b.Namespace
}
