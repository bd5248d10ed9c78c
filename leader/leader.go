// Package leader follows the requests of one engine instance: it hashes their token
// blocks, offers what the store has of them, and plans each engine step's loads and
// saves for every rank. It never touches block bytes.
package leader

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Index is what the leader needs of the store. Its methods never wait for I/O.
type Index interface {
	// Lookup returns the longest prefix of chain of which every shard is stored, pinned
	// by the lease for ttl. The zero lease pins nothing.
	Lookup(ns store.NamespaceID, shards []connector.Shard, chain []connector.Key, ttl time.Duration) (int, store.LeaseID)
	// Renew prolongs a lease; false means that it has run out.
	Renew(id store.LeaseID, ttl time.Duration) bool
	Release(id store.LeaseID)
	// Has reports whether a record is stored, without counting as a use.
	Has(id store.RecordID) bool
}

// Stats counts a leader's work since its start.
type Stats struct {
	// Requests are followed now.
	Requests int `json:"requests"`
	// Matches counts match calls, MatchedRequests requests that were asked for at all.
	Matches         uint64 `json:"matches"`
	MatchedRequests uint64 `json:"matched_requests"`
	// QueriedTokens counts the tokens of requests at their first match, OfferedTokens
	// those offered then, LoadTokens those whose load was planned.
	QueriedTokens uint64 `json:"queried_tokens"`
	OfferedTokens uint64 `json:"offered_tokens"`
	LoadTokens    uint64 `json:"load_tokens"`
	// SaveBlocks counts blocks planned to be saved, FailedLoads requests whose load
	// failed on any rank.
	SaveBlocks  uint64 `json:"save_blocks"`
	FailedLoads uint64 `json:"failed_loads"`
}

// Leader follows one engine instance. It is safe for concurrent use.
type Leader struct {
	opts   Options
	index  Index
	shards []connector.Shard

	mu       sync.Mutex
	requests map[string]*request
	// tokens adds up the tokens of all requests.
	tokens  int
	stats   Stats
	scratch []byte
	// planned are the keys whose save this step has planned already.
	planned map[connector.Key]struct{}
}

// New returns a leader for one engine instance.
func New(o Options, index Index) (*Leader, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	l := &Leader{
		opts: o, index: index, requests: make(map[string]*request), planned: make(map[connector.Key]struct{}),
	}
	l.shards = o.Manifest.GroupShards(0)
	return l, nil
}

// Stats returns the counters.
func (l *Leader) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Requests = len(l.requests)
	return s
}

// Match returns how much of a request can be loaded beyond m.Computed. It may be
// repeated at will. The offer never reaches the request's last token, since the engine
// must compute at least one, and is nothing where Computed is not block-aligned.
func (l *Leader) Match(_ context.Context, m *connector.MatchRequest) (connector.Offer, error) {
	if len(m.Tokens)+m.From > connector.MaxTokens {
		return connector.Offer{}, fmt.Errorf("%w: prompt of more than %d tokens", connector.ErrBadRequest, connector.MaxTokens)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r, fresh, err := l.admit(m)
	if err != nil {
		return connector.Offer{}, err
	}
	l.stats.Matches++
	tokens := m.From + len(m.Tokens)
	offer := l.offer(r, m.Computed, tokens)
	if fresh {
		l.stats.MatchedRequests++
		l.stats.QueriedTokens += uint64(tokens)
		l.stats.OfferedTokens += uint64(offer)
	}
	return connector.Offer{Tokens: offer, Async: offer > 0}, nil
}

// offer looks up what of r lies behind computed, and pins it.
func (l *Leader) offer(r *request, computed, tokens int) int {
	bs := l.opts.Manifest.BlockSize
	first, end := computed/bs, (tokens-1)/bs
	if r.noLoad || r.failed || computed%bs != 0 || tokens == 0 || first >= end {
		l.unpin(r)
		return 0
	}
	l.scratch = r.hashKeys(bs, end, l.scratch)
	// The chain begins where the engine's own prefix ends: what comes before may be
	// gone from the store without hurting.
	n, lease := l.index.Lookup(l.opts.Namespace, l.shards, r.keys[first:end], l.opts.LeaseTTL)
	if n*bs < l.opts.MinOfferTokens {
		l.index.Release(lease)
		n, lease = 0, 0
	}
	l.unpin(r)
	r.lease = lease
	return n * bs
}

// unpin ends the request's lease.
func (l *Leader) unpin(r *request) {
	l.index.Release(r.lease)
	r.lease = 0
}

// admit finds or makes the request of m and takes over its tokens.
func (l *Leader) admit(m *connector.MatchRequest) (r *request, fresh bool, err error) {
	r = l.requests[m.Request]
	if r != nil && r.scope != m.Scope {
		l.forget(r)
		r = nil
	}
	if r == nil {
		if m.From > 0 {
			return nil, false, fmt.Errorf("%w: %q", connector.ErrUnknownRequest, m.Request)
		}
		l.makeRoom(len(m.Tokens))
		r = &request{id: strings.Clone(m.Request), scope: connector.Scope{Salt: strings.Clone(m.Scope.Salt), LoRA: strings.Clone(m.Scope.LoRA)}}
		l.requests[r.id] = r
		fresh = true
	}
	if !l.tell(r, m.From, m.Tokens) {
		return nil, false, fmt.Errorf("%w: %q is known up to token %d, not %d",
			connector.ErrUnknownRequest, m.Request, len(r.tokens)/4, m.From)
	}
	r.noLoad, r.noSave = m.NoLoad, m.NoSave
	r.touched = l.opts.Now()
	return r, fresh, nil
}

// tell takes over tokens and keeps count.
func (l *Leader) tell(r *request, from int, tokens []uint32) bool {
	before := len(r.tokens) / 4
	ok := r.tell(l.opts.Manifest.BlockSize, from, tokens)
	l.tokens += len(r.tokens)/4 - before
	return ok
}

// makeRoom forgets the requests that were touched least recently while there are too
// many, or too many tokens.
func (l *Leader) makeRoom(tokens int) {
	for len(l.requests) >= l.opts.MaxRequests || (len(l.requests) > 0 && l.tokens+tokens > l.opts.MaxTokens) {
		var oldest *request
		for _, r := range l.requests {
			if oldest == nil || r.touched.Before(oldest.touched) {
				oldest = r
			}
		}
		l.forget(oldest)
	}
}

func (l *Leader) forget(r *request) {
	l.unpin(r)
	l.tokens -= len(r.tokens) / 4
	delete(l.requests, r.id)
}

// Loaded takes in what came of loads. A request whose load failed on any rank is not
// offered anything again, and its blocks from the first failed one on are saved again
// once the engine has recomputed them.
func (l *Leader) Loaded(_ context.Context, m *connector.LoadedReport) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	invalid := make(map[uint32]struct{}, len(m.InvalidBlocks))
	for _, b := range m.InvalidBlocks {
		invalid[b] = struct{}{}
	}
	for _, id := range m.Done {
		r := l.requests[id]
		if r == nil || r.loadCount == 0 {
			continue
		}
		for i := r.loadFirst; i < min(r.loadFirst+r.loadCount, len(r.slots)); i++ {
			if _, bad := invalid[r.slots[i]]; bad {
				r.failed = true
				r.saved = min(r.saved, i)
				l.stats.FailedLoads++
				break
			}
		}
		r.loadCount = 0
		l.unpin(r)
	}
	return nil
}

// Reset forgets the engine's own blocks: it has dropped its cache.
func (l *Leader) Reset(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.requests {
		r.slots, r.loadCount = nil, 0
	}
	return nil
}

// Close forgets every request.
func (l *Leader) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.requests {
		l.forget(r)
	}
}
