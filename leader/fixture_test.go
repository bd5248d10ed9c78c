package leader

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// testIndex stands for the store. The leader is tested against the real one in package
// integration.
type testIndex struct {
	mu      sync.Mutex
	records map[store.RecordID]bool
	// leases are those that are held and the records that each pins.
	leases map[store.LeaseID][]store.RecordID
	next   store.LeaseID
	bytes  int
	asked  int // calls of Present
	// touched are the records that were named to Touch.
	touched map[store.RecordID]bool
	// onLookup, if not nil, is called at the end of every lookup, with the lock held.
	onLookup func()
}

func newTestIndex() *testIndex {
	return &testIndex{records: map[store.RecordID]bool{}, leases: map[store.LeaseID][]store.RecordID{}, bytes: 1000, touched: map[store.RecordID]bool{}}
}

func (x *testIndex) Lookup(ns connector.NamespaceDigest, shards []connector.Shard, chain []connector.Key, _ time.Duration) (int, store.LeaseID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.onLookup != nil {
		defer x.onLookup()
	}
	n := 0
	for n < len(chain) && x.all(ns, shards, chain[n]) {
		n++
	}
	if n == 0 {
		return 0, 0
	}
	x.next++
	for _, k := range chain[:n] {
		for _, s := range shards {
			x.leases[x.next] = append(x.leases[x.next], store.RecordID{Namespace: ns, Shard: s, Key: k})
		}
	}
	return n, x.next
}

func (x *testIndex) all(ns connector.NamespaceDigest, shards []connector.Shard, k connector.Key) bool {
	for _, s := range shards {
		if !x.records[store.RecordID{Namespace: ns, Shard: s, Key: k}] {
			return false
		}
	}
	return true
}

func (x *testIndex) Renew(id store.LeaseID, _ time.Duration) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.leases[id]) > 0
}

func (x *testIndex) Release(id store.LeaseID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.leases, id)
}

func (x *testIndex) Touch(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, k := range keys {
		x.touched[store.RecordID{Namespace: ns, Shard: shard, Key: k}] = true
	}
}

func (x *testIndex) Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.asked++
	for i, k := range keys {
		at[i] = x.records[store.RecordID{Namespace: ns, Shard: shard, Key: k}]
	}
}

func (x *testIndex) PayloadBytes(connector.NamespaceDigest, connector.Shard) int { return x.bytes }

func (x *testIndex) held() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.leases)
}

// pinned is the number of records that leases pin.
func (x *testIndex) pinned() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for _, records := range x.leases {
		n += len(records)
	}
	return n
}

// clock is a clock that only a test moves.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

// fixture is a leader with 4-token blocks on an empty index.
type fixture struct {
	// last is the last offer.
	last connector.Offer
	*testing.T
	*Leader
	x     *testIndex
	clock *clock
}

// testNamespace is the namespace of the leaders here.
var testNamespace = connector.NamespaceDigest{7}

func testManifest(groups ...connector.Group) *connector.Manifest {
	if len(groups) == 0 {
		groups = []connector.Group{{Layers: 1}}
	}
	return &connector.Manifest{
		Engine: "test/1", Model: "m", KVDType: "float32", BlockSize: 4, Groups: groups,
		TensorParallel: 1, PipelineParallel: 1, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
}

func newFixture(t *testing.T, change func(*Options)) *fixture {
	t.Helper()
	f := &fixture{T: t, x: newTestIndex(), clock: &clock{time.Unix(1000, 0)}}
	o := Options{Namespace: testNamespace, Manifest: testManifest(), Now: f.clock.Now}
	if change != nil {
		change(&o)
	}
	l, err := New(o, f.x)
	if err != nil {
		t.Fatal(err)
	}
	f.Leader = l
	return f
}

// tokens are n tokens that begin with first.
func tokens(first, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(first + i)
	}
	return out
}

func (f *fixture) match(m connector.MatchRequest) int {
	f.Helper()
	o, err := f.Match(f.Context(), &m)
	if err != nil {
		f.Fatal(err)
	}
	if o.Async != (o.Tokens > 0 && f.opts.Handoff == nil) {
		f.Errorf("offer %+v: async exactly if there is one and it is no handoff", o)
	}
	f.last = o
	return o.Tokens
}

func (f *fixture) step(m connector.StepRequest) *connector.Plan {
	f.Helper()
	r, err := f.Step(f.Context(), &m)
	if err != nil {
		f.Fatal(err)
	}
	if len(r.Metadata) == 0 {
		return new(connector.Plan)
	}
	p, err := connector.ParsePlan(r.Metadata)
	if err != nil {
		f.Fatal(err)
	}
	if len(p.Loads) != len(r.Loads) {
		f.Errorf("%d loads in the metadata, %d beside it", len(p.Loads), len(r.Loads))
	}
	return p
}

func (f *fixture) loaded(id string, invalid ...uint32) {
	f.Helper()
	if err := f.Loaded(f.Context(), &connector.LoadedReport{Done: []string{id}, InvalidBlocks: invalid}); err != nil {
		f.Fatal(err)
	}
}

// slots lists the slots of transfers.
func slots(ts []connector.Transfer) string {
	var out []uint32
	for _, t := range ts {
		for _, b := range t.Blocks {
			out = append(out, b.Slot)
		}
	}
	return fmt.Sprint(out)
}

// groupSlots lists the slots of one group's transfers.
func groupSlots(ts []connector.Transfer, group int) string {
	var of []connector.Transfer
	for _, t := range ts {
		if t.Group == group {
			of = append(of, t)
		}
	}
	return slots(of)
}

// loadSlots lists the slots that a plan's loads fill.
func loadSlots(p *connector.Plan) string {
	var all []connector.Transfer
	for _, l := range p.Loads {
		all = append(all, l.Transfers...)
	}
	return slots(all)
}

// save stores what a plan saves, on every shard.
func (f *fixture) save(p *connector.Plan) {
	for _, t := range p.Saves {
		for _, b := range t.Blocks {
			f.setStored(t.Group, b.Key, true)
		}
	}
}

// setStored puts all shards of a block into the index, or takes them out.
func (f *fixture) setStored(group int, k connector.Key, stored bool) {
	f.x.mu.Lock()
	defer f.x.mu.Unlock()
	for _, s := range f.groups[group].Shards {
		if id := (store.RecordID{Namespace: testNamespace, Shard: s, Key: k}); stored {
			f.x.records[id] = true
		} else {
			delete(f.x.records, id)
		}
	}
}

// keys are the keys of a prompt's whole blocks.
func (f *fixture) keys(toks []uint32) []connector.Key {
	var out []connector.Key
	key := connector.RootKey(f.bs, connector.Scope{})
	for ; len(toks) >= f.bs; toks = toks[f.bs:] {
		key, _ = connector.NextKey(key, connector.AppendTokens(nil, toks[:f.bs]), nil)
		out = append(out, key)
	}
	return out
}

// tables are block tables for all groups, group g's slots beginning with slot + 1000 g.
func (f *fixture) tables(slot, n int) [][]uint32 {
	out := make([][]uint32, len(f.groups))
	for g := range out {
		out[g] = tokens(slot+1000*g, n)
	}
	return out
}

// run computes a whole prompt in one step and stores it.
func (f *fixture) run(id string, toks []uint32, slot int, scope connector.Scope) *connector.Plan {
	f.Helper()
	f.match(connector.MatchRequest{Request: id, Tokens: toks, Scope: scope})
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{
		Request: id, Reset: true, NewBlocks: f.tables(slot, (len(toks)+f.bs-1)/f.bs), Count: len(toks),
	}}})
	f.save(p)
	f.step(connector.StepRequest{Finished: []string{id}})
	return p
}
