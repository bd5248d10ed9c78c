package prefix

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
)

// Walk finds how far every rank gets with the prompt that has keys as its block keys.
// Results go to out, which must have room for one per rank. It returns the
// largest usable prefix of any rank. It neither allocates nor waits.
func (x *Index) Walk(ranks *Ranks, keys []connector.Key, out []Result) (depth int) {
	w := ranks.begin(out)
	for int(w.pos) < len(keys) {
		r := x.heads.find(&keys[w.pos])
		if r == nil || int(r.depth) != int(w.pos) {
			break
		}
		x.touch(r)
		held, c := r.look()
		n := common(held, keys[w.pos:])
		if n == 0 {
			break
		}
		w.stretch(c, uint32(n))
		if w.alive == 0 {
			break
		}
	}
	return w.end()
}

const (
	// firstStretch and maxStretch are how many blocks are hashed ahead of the walk at first and
	// at most. The number doubles each time, so that a prompt that nobody has costs little and one
	// that many have is hashed without stopping often.
	firstStretch = 16
	maxStretch   = 512
)

// Scratch is the work space of [Index.WalkTokens]. It holds the keys that a walk needed. It may
// be used for one walk at a time, any number of times.
type Scratch struct {
	keys      []connector.Key
	hasher    blockkey.Hasher
	tokens    []uint32
	blockSize int
	end       Spot
}

// End is where the prompt that was walked last ends, if the walk got there: if a rank has all of it, or the index has.
func (s *Scratch) End() Spot { return s.end }

// hash makes sure that the keys of the prompt's first n blocks are there.
func (s *Scratch) hash(n int) {
	if have := len(s.keys); have < n {
		s.keys = s.hasher.Append(s.keys, s.tokens[have*s.blockSize:n*s.blockSize], s.blockSize)
	}
}

// Keys are the keys of the prompt that was walked last, those that have been hashed.
// They are valid until the next walk.
func (s *Scratch) Keys() []connector.Key { return s.keys }

// AllKeys hashes the rest of the prompt that was walked last and returns the keys of all
// its full blocks, for [Index.Predict]. The tokens must not have changed. The keys are valid
// until the next walk.
func (s *Scratch) AllKeys() []connector.Key {
	if s.blockSize > 0 {
		s.hash(len(s.tokens) / s.blockSize)
	}
	return s.keys
}

// WalkTokens is [Index.Walk] for a prompt given as tokens: root is where its keys begin (see
// [blockkey.Scheme.Root]), blockSize the tokens of a block. It hashes only the tokens that the walk
// gets to, and at most a few hundred blocks beyond. It allocates only until scratch has grown.
func (x *Index) WalkTokens(ranks *Ranks, root blockkey.Link, tokens []uint32, blockSize int, scratch *Scratch, out []Result) (depth int) {
	scratch.keys, scratch.tokens, scratch.blockSize, scratch.end = scratch.keys[:0], tokens, blockSize, Spot{}
	scratch.hasher.Begin(root)
	total := 0
	if blockSize > 0 {
		total = len(tokens) / blockSize
	}
	w := ranks.begin(out)
	for ahead := firstStretch; int(w.pos) < total; {
		pos := int(w.pos)
		scratch.hash(pos + 1)
		r := x.heads.find(&scratch.keys[pos])
		if r == nil || int(r.depth) != pos {
			break
		}
		x.touch(r)
		keys, c := r.look()
		want := min(len(keys), total-pos)
		// Beyond the blocks that any rank has there is nothing to find.
		reach := min(want, int(c.End(w.v.relevant)))
		n := 0
		for n < reach {
			to := min(n+ahead, reach)
			scratch.hash(pos + to)
			got := common(keys[n:to], scratch.keys[pos+n:])
			n += got
			if n < to {
				break
			}
			ahead = min(2*ahead, maxStretch)
		}
		if n == 0 {
			break
		}
		if pos+n == total {
			scratch.end = spotOf(r, uint32(n), scratch.keys)
		}
		if w.stretch(c, uint32(n)); w.alive == 0 || n == reach && reach < want {
			break
		}
	}
	return w.end()
}
