package leader

import (
	"container/list"
	"slices"
	"strings"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Keyed is the leader of an engine that brings its own keys (key scheme "engine"). It offers, prices,
// pins and counts like [Leader], but hashes and plans nothing: the engine says what it loads and
// saves. It remembers little of a request, so calls may come in any order and be left out. It is
// safe for concurrent use and never waits for I/O.
type Keyed struct {
	mu     sync.Mutex
	closed bool
	hits
	// requests has an element of byID for each, the one that was used last first.
	requests list.List
	byID     map[string]*list.Element
	// loads are the requests of the loads under way, by the ids of the loads. They may have been
	// forgotten.
	loads map[string]*keyedRequest
	// Work space: the keys of a call, the bitmaps of an answer, which are the caller's, and where blocks
	// are.
	keys []connector.Key
	bits [][]byte
	at   []bool
}

// keyedRequest is what is known of a request.
type keyedRequest struct {
	id string
	hit
	// asked is set once it was asked for, and failed once a load of it has failed: it is not offered
	// anything again, since an engine that asks again would fail without end.
	asked, failed bool
	// loading is the number of its loads under way, and lent are the leases of what it had been
	// offered when they started: they last until all have ended, whatever is offered meanwhile.
	loading int
	lent    []store.LeaseID
}

// NewKeyed returns a leader for one engine instance that brings its own keys.
func NewKeyed(o Options, index Index) (*Keyed, error) {
	k := &Keyed{byID: make(map[string]*list.Element), loads: make(map[string]*keyedRequest)}
	if err := k.hits.init(o, connector.KeySchemeEngine, index); err != nil {
		return nil, err
	}
	return k, nil
}

// Present says which blocks are offered: a bitmap for each layer group. They are in the memory of bits,
// where it is large enough; it may be nil. It keeps nothing of m and bits. What is there is offered up to the boundary where loading beats prefill. Where
// the first gap ends that, what is there after the gap and worth loading is offered as well, since the
// engine may hold the gap itself.
func (k *Keyed) Present(m *connector.PresentRequest, bits [][]byte) [][]byte {
	k.mu.Lock()
	groups := slices.Grow(bits[:0], len(k.groups))[:len(k.groups)]
	k.bits = groups
	k.present(m)
	k.bits = nil
	probe := k.probeDue()
	k.mu.Unlock()
	if probe {
		k.opts.Probe()
	}
	return groups
}

func (k *Keyed) present(m *connector.PresentRequest) {
	n := len(m.Hashes)
	for g := range k.bits {
		bytes := (n + 7) / 8
		k.bits[g] = slices.Grow(k.bits[g][:0], bytes)[:bytes]
		clear(k.bits[g])
	}
	if k.closed {
		return
	}
	r := k.admit(m.Request)
	fresh := !r.asked
	r.asked = true
	k.stats.Matches++
	offered := 0
	switch first := max(0, m.Held-m.First); {
	case k.notReady.Load():
		k.stats.NotReady++
		k.release(&r.hit)
	case m.NoLoad || r.failed || first >= n:
		k.release(&r.hit)
	default:
		offered = k.offer(r, m.Hashes, first)
	}
	if fresh {
		k.stats.MatchedRequests++
		had := min(max(m.First, m.Held), m.First+n) // it asks for none before First
		k.stats.EngineTokens += uint64(had * k.bs)
		k.stats.QueriedTokens += uint64((m.First + n - had) * k.bs)
		k.stats.OfferedTokens += uint64(offered * k.bs)
		var tiers [connector.MaxTiers]connector.TierTokens
		if offered > 0 {
			tiers = k.price.TiersOf(&k.have, k.engineKeys(m.Hashes), max(0, m.Held-m.First), k.bits)
		}
		k.stats.Stats.Add((m.First+n-had)*k.bs, offered*k.bs, &tiers)
	}
}

// offer sets the bits of the blocks, from first on, that are offered, and pins them instead of what
// was pinned for r before. It returns how many there are in the layer group with the most.
func (k *Keyed) offer(r *keyedRequest, hashes []connector.Proof, first int) int {
	r.keys = k.engineKeys(hashes)
	k.swap(&r.hit)
	end := len(hashes)
	boundary := k.find(&r.hit, first, end)
	offered := 0
	switch {
	case boundary > first && (boundary-first)*k.bs < k.opts.MinOfferTokens:
		k.release(&r.hit)
	default:
		offered = k.set(first, boundary)
		if k.gap(r.keys, boundary) {
			offered += k.rest(&r.hit, boundary)
		}
	}
	r.keys = nil // the work space is the next call's
	k.releaseHeld()
	return offered
}

// engineKeys returns the keys of hashes, valid until the next call.
func (k *Keyed) engineKeys(hashes []connector.Proof) []connector.Key {
	k.keys = slices.Grow(k.keys[:0], len(hashes))[:len(hashes)]
	for i := range hashes {
		k.keys[i] = connector.EngineKey(hashes[i])
	}
	return k.keys
}

// set sets the bits of what a load of blocks [first, boundary) needs, and returns their number.
func (k *Keyed) set(first, boundary int) int {
	if boundary == first {
		return 0
	}
	for g := range k.groups {
		for i := max(first, k.groups[g].FirstBlock(boundary*k.bs, k.bs)); i < boundary; i++ {
			k.bits[g][i/8] |= 1 << (i % 8)
		}
	}
	return boundary - first
}

// gap reports whether block boundary is not there, as against not worth loading or of no use
// without the blocks of a window.
func (k *Keyed) gap(keys []connector.Key, boundary int) bool {
	if boundary == len(keys) || len(k.prefix) == 0 {
		return false
	}
	k.at = slices.Grow(k.at[:0], 1)[:1]
	k.have.Blocks(k.prefix, keys[boundary:boundary+1], k.at)
	return !k.at[0]
}

// maxStretches bounds the runs of blocks after a gap that are pinned for a request, and with them
// those that are offered. The layer groups share it evenly, since a load needs all of them; each has
// one at least. A run takes a lease, and all requests of a node share its leases.
const maxStretches = 8

// rest sets the bits of what is there after a gap and worth loading, each run of blocks by itself, and
// pins it. It returns the number of blocks in the layer group with the most.
func (k *Keyed) rest(r *hit, gap int) int {
	most := 0
	refusing, decided := false, false
	stretches := max(1, maxStretches/len(k.groups))
	n := len(r.keys) - gap
	k.at = slices.Grow(k.at[:0], n)[:n]
	for g := range k.groups {
		shards := k.groups[g].Shards
		k.have.Blocks(shards, r.keys[gap:], k.at)
		count := 0
		for i, left := 0, stretches; i < n && left > 0; i++ {
			if !k.at[i] {
				continue
			}
			end := i + 1
			for end < n && k.at[end] {
				end++
			}
			best, priced := k.best(r, gap+i, gap+end)
			refusing, decided = refusing || best < gap+end, decided || priced
			found, lease := k.index.Lookup(k.opts.Namespace, shards, r.keys[gap+i:best], k.opts.LeaseTTL)
			r.leases = appendLease(r.leases, lease)
			for b := gap + i; b < gap+i+found; b++ {
				k.bits[g][b/8] |= 1 << (b % 8)
			}
			count += found
			left--
			i = end
		}
		most = max(most, count)
	}
	if decided {
		k.price.Refusing = refusing // find has refused nothing, or there would be no gap
	}
	return most
}

// Loading notes that the load m has started: what its request was offered stays pinned for it. It
// keeps nothing of m.
func (k *Keyed) Loading(m *connector.KeyedMove) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	k.ended(m.ID, false) // of an earlier use of the id, if its end was never told
	r := k.admit(m.Owner())
	r.loading++
	r.lent, r.leases = append(r.lent, r.leases...), r.leases[:0]
	k.renew(r.lent)
	k.loads[strings.Clone(m.ID)] = r
	blocks := make([]int, len(k.groups))
	for i := range m.Parts {
		blocks[m.Parts[i].Group] += len(m.Parts[i].Hashes)
	}
	k.stats.LoadTokens += uint64(slices.Max(blocks) * k.bs)
}

// Loaded takes in how loads ended.
func (k *Keyed) Loaded(loads []connector.FinishedLoad) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range loads {
		k.ended(loads[i].Request, len(loads[i].FailedBlocks) > 0)
	}
}

// Cancelled takes in that a load ends without a report.
func (k *Keyed) Cancelled(load string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended(load, false)
}

// Unregistered takes in that all loads have ended without a report.
func (k *Keyed) Unregistered() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for load := range k.loads {
		k.ended(load, false)
	}
}

func (k *Keyed) ended(load string, failed bool) {
	r := k.loads[load]
	if r == nil {
		return
	}
	delete(k.loads, load)
	if failed && !r.failed {
		r.failed = true
		k.stats.FailedLoads++
	}
	if r.loading--; r.loading == 0 {
		k.takeBack(r)
	}
}

// takeBack releases the leases of loads.
func (k *Keyed) takeBack(r *keyedRequest) { r.lent = k.drop(r.lent) }

// Saving counts a save.
func (k *Keyed) Saving(m *connector.KeyedMove) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.SaveBlocks += uint64(m.Blocks())
}

// minLearnSeconds is the shortest time that a prefill speed is learnt from.
const minLearnSeconds = 1e-6

// Touch ends a request: the records of its blocks, of all layer groups, count as used now, and what
// it was offered is let go of. It keeps nothing of m.
func (k *Keyed) Touch(m *connector.TouchRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	keys := k.engineKeys(m.Hashes)
	for g := range k.groups {
		for _, shard := range k.groups[g].Shards {
			k.index.Touch(k.opts.Namespace, shard, keys)
		}
	}
	if m.Seconds >= minLearnSeconds && m.Tokens >= k.opts.MinLearnTokens {
		k.prefill.Add(m.Tokens, m.Seconds)
	}
	if e := k.byID[m.Request]; e != nil {
		k.forget(e)
	}
}

// admit returns the request of an id, new or known. The one that was used least recently is
// forgotten where there are too many.
func (k *Keyed) admit(id string) *keyedRequest {
	if e := k.byID[id]; e != nil {
		k.requests.MoveToFront(e)
		return e.Value.(*keyedRequest)
	}
	if k.requests.Len() >= k.opts.MaxRequests {
		k.forget(k.requests.Back())
	}
	r := &keyedRequest{id: strings.Clone(id)}
	k.byID[r.id] = k.requests.PushFront(r)
	return r
}

func (k *Keyed) forget(e *list.Element) {
	r := k.requests.Remove(e).(*keyedRequest)
	delete(k.byID, r.id)
	k.release(&r.hit)
	k.takeBack(r)
}

// Stats returns the counters.
func (k *Keyed) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.snapshot(len(k.byID))
}

// Close forgets every request and releases every pin. Nothing is offered afterwards.
func (k *Keyed) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for e := k.requests.Back(); e != nil; e = k.requests.Back() {
		k.forget(e)
	}
	clear(k.loads)
}
