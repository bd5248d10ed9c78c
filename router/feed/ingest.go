package feed

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/event"
	"github.com/kvconn/kvconn/router/prefix"
)

// IngestStats count what came from one rank.
type IngestStats struct {
	// Batches, Events and Blocks were read; ignored ones are included.
	Batches uint64 `json:"batches"`
	Events  uint64 `json:"events"`
	Blocks  uint64 `json:"blocks"`
	// Malformed are batches that could not be decoded or that contradict themselves.
	Malformed uint64 `json:"malformed"`
	// UnknownParents are events, dropped, whose parent was never stored or was evicted by the index.
	UnknownParents uint64 `json:"unknown_parents"`
	// UnknownRemovals are removed blocks that were unknown.
	UnknownRemovals uint64 `json:"unknown_removals"`
	// UnknownTypes and UnknownKeys are events and fields unknown to this version.
	UnknownTypes uint64 `json:"unknown_types"`
	UnknownKeys  uint64 `json:"unknown_keys"`
	// MismatchedBlockSize are events in blocks of another size than the router's.
	MismatchedBlockSize uint64 `json:"mismatched_block_size"`
	// IgnoredGroups are events of cache groups that are not full attention, or not the first such group (see
	// groups). IgnoredMedia are events of other memory than the GPU's. HashOnly are events that name blocks
	// without their tokens.
	IgnoredGroups uint64 `json:"ignored_groups"`
	IgnoredMedia  uint64 `json:"ignored_media"`
	HashOnly      uint64 `json:"hash_only"`
	// ExtraKeyed are blocks whose hash covers more than tokens, LoRA and salt. They are kept under keys that
	// no prompt of tokens has.
	ExtraKeyed uint64 `json:"extra_keyed"`
	// Refused are events that the index refused.
	Refused uint64 `json:"refused"`
	// MismatchedHashes are blocks of an SGLang rank, without salt and adapter, whose hash is not that of their tokens, though
	// that of the block before is: the engine hashes in another way than the router, so what its store has is not found.
	MismatchedHashes uint64 `json:"mismatched_hashes"`
}

// ErrBlockSize says that an engine's blocks have another size than the router's: none of its prefixes would
// ever be found.
var ErrBlockSize = errors.New("the engine's block size is not the router's")

// Ingest turns the event batches of one rank into changes of an index. It is for one goroutine and
// allocates nothing once its buffers have grown.
type Ingest struct {
	scheme    blockkey.Scheme
	blockSize int
	holder    Holder
	index     Index
	decoder   *event.Decoder
	root      blockkey.Link // of prompts without salt and LoRA
	said      int           // the block size that the engine's events have, 0 until one says; an engine has one
	stats     IngestStats
	orphans   uint64 // unknown parents that the index should know
	groups    groups
	pages     pages // of an SGLang rank
	keys      []connector.Key
	links     []blockkey.Link // of the same blocks, for pages
	ids       []uint64        // their names in the index, or those of removed ones
	gone      [1]uint64       // work space of notePages
	scratch   []byte
	extra     []byte
	err       error // the first of the batch
}

// NewIngest makes the ingest of a rank whose GPU cache is holder. The scheme of keys and the number of tokens in a block
// are those of its model.
func NewIngest(scheme blockkey.Scheme, blockSize int, holder Holder, index Index) *Ingest {
	g := &Ingest{scheme: scheme, holder: holder, index: index, decoder: event.NewDecoder(), pages: newPages(maxPages)}
	g.setBlockSize(blockSize)
	return g
}

func (g *Ingest) setBlockSize(tokens int) {
	g.blockSize, g.root = tokens, g.scheme.Root(tokens, connector.Scope{})
}

// Stats are what was counted so far.
func (g *Ingest) Stats() IngestStats {
	s := g.stats
	s.UnknownTypes, s.UnknownKeys = g.decoder.UnknownTypes, g.decoder.UnknownKeys
	return s
}

// Clear forgets what the rank holds.
func (g *Ingest) Clear() {
	g.Cleared()
	g.groups, g.said = groups{}, 0
}

// Batch applies the events of one message. It fails with [event.ErrMalformed] if some of them are lost,
// and with [ErrBlockSize].
func (g *Ingest) Batch(payload []byte) (event.Batch, error) {
	g.err = nil
	g.stats.Batches++
	b, err := g.decoder.Decode(payload, g)
	if err == nil {
		err = g.err
	}
	g.stats.Events += uint64(b.Events)
	if errors.Is(err, event.ErrMalformed) {
		g.stats.Malformed++
	}
	return b, err
}

func (g *Ingest) note(err error) {
	if g.err == nil {
		g.err = err
	}
}

// Stored implements [event.Handler].
func (g *Ingest) Stored(e *event.Stored) {
	g.stats.Blocks += uint64(len(e.Hashes))
	switch {
	case e.OffGPU:
		g.stats.IgnoredMedia++
		return
	case !g.groups.stored(e.Group, e.Spec):
		g.stats.IgnoredGroups++
		return
	case len(e.Hashes) == 0:
		return
	case len(e.Tokens) == 0:
		g.stats.HashOnly++
		return
	case !g.sized(e.BlockSize):
		return
	case len(e.Tokens) != 4*g.blockSize*len(e.Hashes):
		g.note(fmt.Errorf("%w: %d tokens for %d blocks of %d", event.ErrMalformed,
			len(e.Tokens)/4, len(e.Hashes), g.blockSize))
		return
	}
	parent, at, known := g.parent(e)
	if !known {
		g.unknownParent()
		return
	}
	g.hash(at, e)
	ids := e.Hashes
	if g.scheme == blockkey.SGLang {
		ids = g.ids
	}
	switch err := g.index.Stored(g.holder, parent, e.HasParent, ids, g.keys); {
	case errors.Is(err, prefix.ErrUnknownParent): // evicted since it was looked up
		g.unknownParent()
		return
	case err != nil:
		g.stats.Refused++
	}
	if g.scheme == blockkey.SGLang {
		g.notePages(at, e)
	}
}

// sized reports whether blocks are of the router's size; 0 is that of an event that does not say.
func (g *Ingest) sized(tokens int) bool {
	if tokens == 0 {
		return true
	}
	if g.said == 0 {
		g.said = tokens
	}
	if tokens == g.blockSize {
		return true
	}
	g.stats.MismatchedBlockSize++
	g.note(fmt.Errorf("%w: %d tokens, not %d", ErrBlockSize, tokens, g.blockSize))
	return false
}

// parent is the place that the blocks of an event follow, and the index's name of the block there.
func (g *Ingest) parent(e *event.Stored) (id uint64, at blockkey.Link, known bool) {
	if !e.HasParent {
		return 0, g.rootOf(e), true
	}
	id = e.Parent
	var tail blockkey.Tail
	if g.scheme == blockkey.SGLang {
		p, ok := g.pages.held[e.Parent]
		if !ok {
			return 0, at, false
		}
		id, tail = p.id, p.tail
	}
	key, known := g.index.ParentKey(g.holder, id)
	return id, g.scheme.At(key, tail), known
}

// notePages keeps an SGLang rank's names of the pages that follow at, and looks whether the engine hashes as the router
// does. After a page that it hashes otherwise, such as one of an image, nothing shows that.
func (g *Ingest) notePages(at blockkey.Link, e *event.Stored) {
	plain := len(e.Salt)+len(e.LoRAName)+len(e.Extra) == 0 && !e.HasLoRAID && (!e.HasParent || at.Name() == e.Parent)
	for i, name := range e.Hashes {
		gone := g.pages.add(name, g.ids[i], g.links[i].Tail())
		for g.gone[0] = gone.id; gone.copies > 0; gone.copies-- {
			g.index.Removed(g.holder, g.gone[:])
		}
		if plain && g.links[i].Name() != name {
			g.stats.MismatchedHashes++
		}
	}
}

// unknownParent counts an event that has no place. If blocks were forgotten for want of room, that does
// not show that events were missed, and rebuilding the rank would not help.
func (g *Ingest) unknownParent() {
	g.stats.UnknownParents++
	if !g.index.Evicted(g.holder) && !g.pages.dropped {
		g.orphans++
	}
}

// rootOf is where the prompts of an event's scope begin.
func (g *Ingest) rootOf(e *event.Stored) blockkey.Link {
	if len(e.LoRAName) == 0 && len(e.Salt) == 0 && !e.HasLoRAID {
		return g.root
	}
	s := connector.Scope{Salt: string(e.Salt), LoRA: string(e.LoRAName)}
	if s.LoRA == "" && e.HasLoRAID {
		s.LoRA = strconv.FormatInt(e.LoRAID, 10)
	}
	return g.scheme.Root(g.blockSize, s)
}

// hash computes the keys of an event's blocks, and of SGLang's their links and the index's names. kvconn's keys are chained
// without links, whose copies would cost half as much again.
func (g *Ingest) hash(at blockkey.Link, e *event.Stored) {
	g.keys, g.links, g.ids = g.keys[:0], g.links[:0], g.ids[:0]
	key := at.Key()
	for i := range e.Hashes {
		tokens := g.covered(e, i)
		if g.scheme == blockkey.Tokens {
			key, g.scratch = connector.NextKey(key, tokens, g.scratch)
			g.keys = append(g.keys, key)
			continue
		}
		at, g.scratch = at.Next(tokens, g.scratch)
		g.keys, g.links, g.ids = append(g.keys, at.Key()), append(g.links, at), append(g.ids, prefix.KeyID(at.Key()))
	}
}

// covered is what the key of block i of an event covers: its tokens, and what else is in it.
func (g *Ingest) covered(e *event.Stored, i int) []byte {
	n := 4 * g.blockSize
	tokens := e.Tokens[i*n : (i+1)*n]
	if len(e.Extra) > 0 && e.Extra[i] != nil {
		// The tokens alone do not say what is in the block: no prompt may find it by them.
		g.extra = append(append(g.extra[:0], tokens...), e.Extra[i]...)
		tokens = g.extra
		g.stats.ExtraKeyed++
	}
	return tokens
}

// Removed implements [event.Handler].
func (g *Ingest) Removed(e *event.Removed) {
	g.stats.Blocks += uint64(len(e.Hashes))
	switch {
	case e.OffGPU:
		g.stats.IgnoredMedia++
	case !g.groups.removed(e.Group):
		g.stats.IgnoredGroups++
	default:
		g.stats.UnknownRemovals += uint64(g.remove(e.Hashes))
	}
}

// remove takes blocks out of the index, and returns how many were unknown.
func (g *Ingest) remove(names []uint64) (unknown int) {
	if g.scheme == blockkey.SGLang {
		g.ids, unknown = g.pages.remove(names, g.ids[:0])
		names = g.ids
	}
	return unknown + g.index.Removed(g.holder, names)
}

// Cleared implements [event.Handler]: the engine has reset its GPU's cache.
func (g *Ingest) Cleared() {
	g.index.Clear(g.holder)
	g.pages.clear()
}

// groups knows which cache groups of a rank are full attention, since removals do not say. If there are several,
// an engine needs a block in each of them. So the first group's blocks count, and a removal from any of them
// takes one. That misses a hit if an engine drops a block from one group after another, and invents none.
type groups [maxGroups]event.SpecKind

// maxGroups is how many groups are told apart; higher ones are not full attention.
const maxGroups = 256

// stored reports whether the blocks of a stored event count as prefix entries. If no event says what kind it
// is, group 0 is full attention: engines put it first.
func (g *groups) stored(group int, kind event.SpecKind) bool {
	if group < 0 || group >= maxGroups {
		return group < 0 && kind != event.SpecOther
	}
	if kind != event.SpecAbsent {
		g[group] = kind
	}
	return g.removed(group) && !slices.Contains(g[:group], event.SpecFull)
}

// removed reports whether the removals of a group's blocks count.
func (g *groups) removed(group int) bool {
	if group < 0 || group >= maxGroups {
		return group < 0
	}
	return g[group] == event.SpecFull || group == 0 && g[0] == event.SpecAbsent
}

// Holder is a rank's GPU, a node's disk or a bucket.
type Holder = prefix.Holder

// Index is where feeds write to. Several feeds may use it at one time.
type Index interface {
	// Stored says that h holds the blocks of these keys, which are consecutive and follow the block that
	// h knows as parent, or begin a prompt. ids are h's own names for them, by which they are removed. A
	// block must be removed as often as it was stored.
	Stored(h Holder, parent uint64, hasParent bool, ids []uint64, keys []connector.Key) error
	// ParentKey is the key of the block that h calls id, if h holds it.
	ParentKey(h Holder, id uint64) (connector.Key, bool)
	// Removed says that h has dropped one copy of each block, and returns how many of them were unknown.
	Removed(h Holder, ids []uint64) (unknown int)
	// Clear says that h holds nothing.
	Clear(h Holder)
	// Evicted reports whether the index has forgotten blocks of h by itself since the last Clear, to stay
	// within its memory.
	Evicted(h Holder) bool
}
