package codec

import (
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// What a [Chooser] goes by.
const (
	// firstSamples are measured before it decides, and as many of the latest decide later: a few records
	// of one prompt are not yet a model.
	firstSamples = 8
	// sampleEvery is how many records pass until the next is measured. Where records do not shrink,
	// trying one in 1,000 costs next to nothing.
	sampleEvery = 1000
	// maxPercent is what measured records may have left of them: they have to shrink by 15%, or reading
	// them costs more than their transfer.
	maxPercent = 85
	// maxShards bounds what is remembered, a few hundred bytes each. More are not compressed.
	maxShards = 1 << 16
)

// Chooser compresses where that pays. It measures some records of each namespace and shard, and encodes the
// others as long as these shrink enough. It is safe for concurrent use.
type Chooser struct {
	codec *Codec

	mu     sync.Mutex
	shards map[shard]*gain
}

type shard struct {
	namespace connector.NamespaceDigest
	shard     connector.Shard
}

// gain is what is known of a shard.
type gain struct {
	records uint64 // that came
	samples uint64 // of these, measured
	// The latest samples: what they took plain and encoded, in the units of slots.
	plain, encoded [firstSamples]int
	pays           bool
}

// NewChooser returns a chooser that knows of nothing yet.
func NewChooser(c *Codec) *Chooser { return &Chooser{codec: c, shards: make(map[shard]*gain)} }

// Encode is [Codec.Encode] for a record that is going to be stored. smaller is also false where the
// shard's records do not shrink enough, or this one takes as large a slot as without.
func (c *Chooser) Encode(dst, payload []byte, width int, ns connector.NamespaceDigest, s connector.Shard) (encoded []byte, smaller bool) {
	if !known(width) {
		return dst, false
	}
	at := shard{ns, s}
	encode, measure := c.next(at)
	if !encode {
		return dst, false
	}
	encoded, smaller = c.codec.Encode(dst, payload, width)
	plain, took := store.PayloadBufferSize(len(payload)), store.PayloadBufferSize(len(encoded)-len(dst))
	if !smaller || took >= plain {
		encoded, smaller, took = dst, false, plain
	}
	if measure {
		c.measured(at, plain, took)
	}
	return encoded, smaller
}

// Pays reports whether records of a shard are encoded.
func (c *Chooser) Pays(ns connector.NamespaceDigest, s connector.Shard) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.shards[shard{ns, s}]
	return g != nil && g.pays
}

// next says whether to encode the next record of a shard, and whether to measure it.
func (c *Chooser) next(at shard) (encode, measure bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.shards[at]
	if g == nil {
		if len(c.shards) == maxShards {
			return false, false
		}
		g = new(gain)
		c.shards[at] = g
	}
	measure = g.records < firstSamples || g.records%sampleEvery == 0
	g.records++
	return measure || g.pays, measure
}

// measured notes what a record took, and decides again.
func (c *Chooser) measured(at shard, plain, encoded int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.shards[at]
	i := g.samples % firstSamples
	g.plain[i], g.encoded[i] = plain, encoded
	g.samples++
	if g.samples < firstSamples {
		return
	}
	all, left := 0, 0
	for i := range g.plain {
		all, left = all+g.plain[i], left+g.encoded[i]
	}
	g.pays = left*100 <= all*maxPercent
}
