// Package leader follows the requests of one engine instance: it hashes their token blocks, offers
// the blocks that the tiers have where loading beats prefill, and plans each engine step's loads and
// saves for every rank. It never touches block bytes.
//
// The calls for a request come in the order match, alloc, scheduled, finished, any of them
// repeated, and the leader survives every other order: an engine that calls out of turn costs
// itself hits, never a wrong byte.
package leader

import (
	"context"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader/chain"
	"github.com/kvconn/kvconn/leader/doubt"
)

// Leader follows one engine instance. It is safe for concurrent use, and holds no lock while it
// waits for reads.
type Leader struct {
	mu     sync.Mutex
	closed bool
	hits
	requests requests
	hash     hasher
	planned  planned
	room     room
	doubt    doubt.Doubt
	// steps counts the steps; retired are loads whose memory a worker may still read.
	steps   uint64
	retired []retired
	// Work space: scheduled are the requests that a step schedules, nil where one is not known; at
	// says which blocks the tiers have.
	scheduled []*request
	at        []bool
	// told are the saves of the step under way, if telling is set: the engine asked for them.
	telling bool
	told    []connector.PlannedSave
}

// New returns a leader for one engine instance.
func New(o Options, index Index) (*Leader, error) {
	l := new(Leader)
	if err := l.hits.init(o, connector.KeySchemeTokens, index); err != nil {
		return nil, err
	}
	m := l.opts.Manifest
	l.requests.init(len(m.Groups))
	l.hash = hasher{chain.New(l.opts.Namespace, m.BlockSize)}
	l.planned.init(l.opts.SaveTTL, l.opts.Now())
	l.room.limit = connector.MaxFrameBytes - frameHeadroom
	return l, nil
}

// Loaded takes in how loads ended. A request whose load failed on any rank is not offered anything
// again, and its blocks from the first failed one on are saved again once the engine has recomputed
// them. If a request has had several loads, a report is taken to be that of the oldest. It may be
// that of the newest, since a load that was replaced is not reported: see [Leader.settle].
func (l *Leader) Loaded(_ context.Context, m *connector.LoadedReport) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var invalid map[uint32]struct{}
	if len(m.InvalidBlocks) > 0 {
		invalid = make(map[uint32]struct{}, len(m.InvalidBlocks))
		for _, b := range m.InvalidBlocks {
			invalid[b] = struct{}{}
		}
	}
	for _, id := range m.Done {
		r := l.requests.find(id)
		if r != nil {
			l.judge(r, l.checkLoads(r, invalid))
		}
		older := l.unretire(id)
		if r == nil || len(r.loads) == 0 {
			continue
		}
		if !older {
			l.endLoad(r.loads[0])
			r.loads = append(r.loads[:0], r.loads[1:]...)
			l.requests.count(r)
		}
		for _, d := range r.loads {
			d.reported = true
		}
	}
	return nil
}

// settle ends the loads of a request that runs if a report that was taken to be that of an older
// load must have been that of the newest: an engine does not run a request before its load was
// reported, and what it computed in the step of the load was told some steps ago.
func (l *Leader) settle(r *request) {
	if len(r.loads) == 0 {
		return
	}
	if newest := r.loads[len(r.loads)-1]; !newest.reported || l.steps <= newest.step+maxStepsInFlight {
		return
	}
	for _, d := range r.loads {
		l.endLoad(d)
	}
	clear(r.loads)
	r.loads = r.loads[:0]
	l.requests.count(r)
}

// checkLoads looks for invalid slots in all of r's loads, in case one of them is never reported: a
// failure that is overlooked would be offered again and again. It returns the first block that failed, below 0
// if none did.
func (l *Leader) checkLoads(r *request, invalid map[uint32]struct{}) (bad int) {
	for _, d := range r.loads {
		if bad = d.firstOf(invalid); bad >= 0 {
			l.failed(r, bad)
			r.lost = d.appendOf(r.lost[:0], invalid)
			return bad
		}
	}
	return -1
}

// failed takes in that r's blocks from bad on were not loaded.
func (l *Leader) failed(r *request, bad int) {
	r.failed = true
	r.unsave(bad)
	// An earlier plan to save the block was not carried out, or badly.
	for g := range l.groups {
		for i := bad; i < len(r.keys); i++ {
			l.planned.remove(plannedBlock{g, r.keys[i]})
		}
	}
	l.stats.FailedLoads++
}

// Reset forgets the engine's own blocks: it has dropped its cache. Nothing of a request is saved
// until the engine tells its whole block table again.
func (l *Leader) Reset(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := l.requests.head.next; r != &l.requests.head; r = r.next {
		l.displace(r)
	}
	return nil
}

// displace forgets r's blocks, which the engine has taken away.
func (l *Leader) displace(r *request) {
	r.unplace()
	for _, d := range r.loads {
		l.retire(r, d)
	}
	clear(r.loads)
	r.loads = r.loads[:0]
	l.requests.count(r)
}

// makeRoom makes room for new requests and tokens: while there are too many, or they hold too
// much, it forgets the request that was used least recently. The one that was used last stays.
func (l *Leader) makeRoom(requests, tokens int) {
	for r := l.requests.oldest(); r != nil; r = l.requests.oldest() {
		fits := len(l.requests.byHash)+requests <= l.opts.MaxRequests && l.requests.size+tokens <= l.opts.MaxTokens
		if fits || requests == 0 && r == l.requests.head.next {
			return
		}
		l.forget(r)
	}
}

// forget ends a request. Only memory that a worker may be reading stays pinned for it.
func (l *Leader) forget(r *request) {
	l.unpin(r)
	l.displace(r)
	r.changed()
	l.requests.remove(r)
	l.requests.recycle(r)
}

// Close forgets every request and releases every pin. Nothing is offered afterwards.
func (l *Leader) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for r := l.requests.oldest(); r != nil; r = l.requests.oldest() {
		l.forget(r)
	}
	for i := range l.retired {
		l.retired[i].handoff.release()
	}
	l.retired = nil
}
