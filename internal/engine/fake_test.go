package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// fakeStore is what outlives an engine: bytes by name, see storeName.
type fakeStore interface {
	get(name string) []byte
	put(name string, data []byte)
}

func storeName(k connector.Key, s connector.Shard) string { return fmt.Sprintf("%s-%d", k, s) }

// memStore is a fakeStore in memory.
type memStore struct {
	mu sync.Mutex
	m  map[string][]byte
}

func newStore() *memStore { return &memStore{m: make(map[string][]byte)} }

func (s *memStore) get(name string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[name]
}

func (s *memStore) put(name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[name] = data
}

// dirStore is a fakeStore that processes share.
type dirStore string

func (s dirStore) get(name string) []byte {
	b, err := os.ReadFile(filepath.Join(string(s), name))
	if err != nil {
		return nil
	}
	return b
}

func (s dirStore) put(name string, data []byte) {
	if err := os.WriteFile(filepath.Join(string(s), name), data, 0o600); err != nil {
		panic(err)
	}
}

// fakePlan is the metadata between the fakes.
type fakePlan struct {
	Loads []fakeTransfers
	Saves []fakeTransfers
}

type fakeTransfers struct {
	Request string
	Blocks  []fakeBlock
}

// fakeBlock is a block to move; Index is its place in the prompt.
type fakeBlock struct {
	Group, Index int
	Block        uint32
	Key          connector.Key
}

// fakeConnector stands for client and daemon at the engine's seam, the scheduler's side.
type fakeConnector struct {
	t        *testing.T
	manifest connector.Manifest
	store    fakeStore
	requests map[string]*fakeRequest
	workers  []*fakeWorker
	// calls are the connector calls so far, when logged is set.
	logged bool
	calls  []string
	resets int

	// maxOffer bounds an offer in blocks if it is not negative.
	maxOffer int
	// sync offers are for synchronous loads.
	sync bool
	// polls is the number of polls that a load takes.
	polls int
	// fail says which of a request's blocks fail to load on a rank.
	fail func(request string, rank, index int) bool
	// tamper changes what a rank loads into a block.
	tamper func(rank int, b fakeBlock, data []byte) []byte
	// blind connectors take a block for stored if its first shard is.
	blind bool
	// forgetful connectors offer again what failed.
	forgetful bool
}

type fakeRequest struct {
	tokens []uint32
	scope  connector.Scope
	spans  []connector.Span
	tables [][]uint32
	// boundary is the number of tokens that are there when the step's load has ended.
	boundary       int
	noSave, missed bool
}

// newFake attaches fakes to an engine and all its ranks.
func newFake(t *testing.T, e *Engine, store fakeStore) *fakeConnector {
	f := &fakeConnector{
		t: t, manifest: e.Manifest(), store: store, requests: make(map[string]*fakeRequest),
		maxOffer: -1, polls: 2, fail: func(string, int, int) bool { return false },
	}
	var workers []WorkerConnector
	for i := range e.memories {
		if e.RankPIDs() != nil {
			break // their processes have workers of their own
		}
		w := &fakeWorker{f: f, store: store, manifest: f.manifest, rank: i, layout: e.Layout(i), file: e.File(i)}
		f.workers, workers = append(f.workers, w), append(workers, w)
	}
	e.Attach(f, workers...)
	return f
}

func (f *fakeConnector) log(format string, args ...any) {
	if f.logged {
		f.calls = append(f.calls, fmt.Sprintf(format, args...))
	}
}

func (f *fakeConnector) keys(r *fakeRequest, n int) []connector.Key {
	q := &request{Request: Request{Scope: r.scope, Spans: r.spans}, tokens: r.tokens}
	return q.chain(n, f.manifest.BlockSize)
}

// present says whether all shards of a block are stored.
func (f *fakeConnector) present(group int, k connector.Key) bool {
	shards := f.manifest.GroupShards(group)
	if f.blind {
		shards = shards[:1]
	}
	return !slices.ContainsFunc(shards, func(s connector.Shard) bool { return f.store.get(storeName(k, s)) == nil })
}

// loadable says whether the blocks that are needed after n are stored, beyond the first.
func (f *fakeConnector) loadable(keys []connector.Key, from, n int) bool {
	bs := f.manifest.BlockSize
	for g := range f.manifest.Groups {
		for i := max(from, f.manifest.Groups[g].FirstBlock(n*bs, bs)); i < n; i++ {
			if !f.present(g, keys[i]) {
				return false
			}
		}
	}
	return true
}

func (f *fakeConnector) Match(_ context.Context, m *connector.MatchRequest) connector.Offer {
	r := f.requests[m.Request]
	if r == nil {
		r = &fakeRequest{scope: m.Scope, spans: m.Spans, noSave: m.NoSave}
		f.requests[m.Request] = r
	}
	r.tokens = append(r.tokens[:m.From], m.Tokens...)
	n, bs := 0, f.manifest.BlockSize
	if !m.NoLoad && !r.missed && m.Computed%bs == 0 {
		keys, from := f.keys(r, (len(r.tokens)-1)/bs), m.Computed/bs
		for n = len(keys) - from; n > 0 && (!f.loadable(keys, from, from+n) || (f.maxOffer >= 0 && n > f.maxOffer)); n-- {
		}
	}
	f.log("match %s computed %d: %d", m.Request, m.Computed, n*bs)
	return connector.Offer{Tokens: n * bs, Async: n > 0 && !f.sync}
}

func (f *fakeConnector) Step(_ context.Context, m *connector.StepRequest) connector.StepReply {
	f.log("step preempted %v finished %v", m.Preempted, m.Finished)
	var reply connector.StepReply
	var p fakePlan
	for i := range m.Allocs {
		a := &m.Allocs[i]
		f.log("  alloc %s computed %d external %d", a.Request, a.Computed, a.External)
		r := f.requests[a.Request]
		if a.External == 0 {
			continue
		}
		if f.sync {
			r.boundary = a.Boundary()
		}
		load := fakeTransfers{Request: a.Request}
		planned := connector.PlannedLoad{Request: a.Request}
		keys := f.keys(r, a.Boundary()/f.manifest.BlockSize)
		for g := range a.Blocks {
			first, end := a.LoadRange(&f.manifest.Groups[g], g, f.manifest.BlockSize)
			for i := first; i < end; i++ {
				load.Blocks = append(load.Blocks, fakeBlock{Group: g, Index: i, Block: a.Blocks[g][i], Key: keys[i]})
				planned.Blocks = append(planned.Blocks, a.Blocks[g][i])
			}
		}
		p.Loads, reply.Loads = append(p.Loads, load), append(reply.Loads, planned)
	}
	for _, s := range m.Scheduled {
		f.log("  scheduled %s reset %t computed %d count %d", s.Request, s.Reset, s.Computed, s.Count)
		if save := f.planSaves(&s); len(save.Blocks) > 0 {
			p.Saves = append(p.Saves, save)
		}
	}
	for _, id := range m.Finished {
		delete(f.requests, id)
	}
	if len(p.Loads)+len(p.Saves) > 0 {
		reply.Metadata, _ = json.Marshal(p)
	}
	return reply
}

func (f *fakeConnector) planSaves(s *connector.Scheduled) (t fakeTransfers) {
	r, bs := f.requests[s.Request], f.manifest.BlockSize
	if s.Reset || r.tables == nil {
		r.tables = make([][]uint32, len(f.manifest.Groups))
	}
	// An engine that counts loaded tokens differently is still told of the same ones.
	computed := max(s.Computed, r.boundary)
	r.boundary = 0
	r.tokens = append(r.tokens[:s.From], s.NewTokens...)
	t.Request = s.Request
	keys := f.keys(r, min(computed+s.Count, len(r.tokens))/bs)
	for g := range r.tables {
		r.tables[g] = append(r.tables[g], s.NewBlocks[g]...)
		if end := computed + s.Count; end > len(r.tokens)+1 || end > len(r.tables[g])*bs {
			f.t.Errorf("request %s is computed up to %d, told are %d tokens, %d blocks", s.Request, end, len(r.tokens), len(r.tables[g]))
		}
		for i := f.manifest.Groups[g].FirstBlock(computed, bs); i < len(keys) && !r.noSave; i++ {
			if !f.present(g, keys[i]) {
				t.Blocks = append(t.Blocks, fakeBlock{Group: g, Index: i, Block: r.tables[g][i], Key: keys[i]})
			}
		}
	}
	return t
}

func (f *fakeConnector) Loaded(_ context.Context, m *connector.LoadedReport) {
	f.log("loaded %v invalid blocks %d", m.Done, len(m.InvalidBlocks))
	for _, id := range m.Done {
		if r := f.requests[id]; r != nil && len(m.InvalidBlocks) > 0 {
			r.missed = !f.forgetful
		}
	}
}

func (f *fakeConnector) Session() uint64 { return 0 }

func (f *fakeConnector) Reset(context.Context) { f.resets++ }

// fakeWorker is the worker's side of the fake. It copies blocks between a rank's file and
// a fakeStore, as late as it may: loaded bytes arrive in the poll that reports them, and
// until then the blocks hold garbage.
type fakeWorker struct {
	// f is nil in a process of its own.
	f        *fakeConnector
	store    fakeStore
	manifest connector.Manifest
	rank     int
	layout   connector.Layout
	file     *os.File
	loads    []*fakeLoad
	saves    []fakeTransfers
	// spoilt requests have a failed load in this step.
	spoilt []string
}

type fakeLoad struct {
	fakeTransfers
	polls int
}

func (w *fakeWorker) log(format string, args ...any) {
	if w.f != nil && w.rank == 0 {
		w.f.log(format, args...)
	}
}

func (w *fakeWorker) Load(_ context.Context, metadata []byte, loads []connector.PlannedLoad) {
	var p fakePlan
	if err := json.Unmarshal(metadata, &p); err != nil {
		panic(err)
	}
	polls := 2
	if w.f != nil {
		polls = w.f.polls
	}
	for _, l := range p.Loads {
		w.loads = append(w.loads, &fakeLoad{fakeTransfers: l, polls: polls})
	}
	w.saves, w.spoilt = p.Saves, nil
	if len(loads) > 0 {
		w.log("load")
	}
}

func (w *fakeWorker) Save(context.Context, []byte) (r connector.SaveResult) {
	for _, t := range w.saves {
		for _, b := range t.Blocks {
			s, ok := w.manifest.Shard(w.rank, b.Group)
			if ok && w.manifest.Writes(w.rank, b.Group) && !slices.Contains(w.spoilt, t.Request) {
				w.store.put(storeName(b.Key, s), w.read(b))
			}
		}
		r.Taken += len(t.Blocks)
	}
	if r.Taken > 0 {
		w.log("save %d", r.Taken)
	}
	return r
}

func (w *fakeWorker) Poll(context.Context) []connector.FinishedLoad {
	var done []connector.FinishedLoad
	w.loads = slices.DeleteFunc(w.loads, func(l *fakeLoad) bool {
		l.polls--
		ended := l.polls <= 0
		var failed []uint32
		for _, b := range l.Blocks {
			s, ok := w.manifest.Shard(w.rank, b.Group)
			if !ok {
				continue
			}
			data := w.store.get(storeName(b.Key, s))
			bad := w.f != nil && w.f.fail(l.Request, w.rank, b.Index)
			if data == nil {
				failed = append(failed, b.Block)
				continue
			}
			if bad || !ended {
				data = bytes.Repeat([]byte{0x3f}, len(data))
			} else if w.f != nil && w.f.tamper != nil {
				data = w.f.tamper(w.rank, b, data)
			}
			if bad {
				failed = append(failed, b.Block)
			}
			w.write(b, data)
		}
		if ended {
			done = append(done, connector.FinishedLoad{Request: l.Request, FailedBlocks: failed})
			if len(failed) > 0 {
				w.spoilt = append(w.spoilt, l.Request)
			}
		}
		return ended
	})
	if len(done) > 0 {
		w.log("poll %d", len(done))
	}
	return done
}

func (w *fakeWorker) Cancel(_ context.Context, request string) error {
	w.loads = slices.DeleteFunc(w.loads, func(l *fakeLoad) bool { return l.Request == request })
	return nil
}

// pieces calls do with the place of each piece of a block in the rank's file.
func (w *fakeWorker) pieces(b fakeBlock, do func(offset int64, size int)) {
	for _, r := range w.layout.Groups[b.Group].Runs {
		for layer := range uint64(r.Layers) {
			do(int64(r.Offset+layer*r.LayerStride+uint64(b.Block)*r.BlockStride), int(r.Bytes))
		}
	}
}

// read reads a block through the file, as another process would.
func (w *fakeWorker) read(b fakeBlock) []byte {
	var data []byte
	w.pieces(b, func(offset int64, size int) {
		piece := make([]byte, size)
		if _, err := w.file.ReadAt(piece, offset); err != nil {
			panic(err)
		}
		data = append(data, piece...)
	})
	return data
}

func (w *fakeWorker) write(b fakeBlock, data []byte) {
	w.pieces(b, func(offset int64, size int) {
		if _, err := w.file.WriteAt(data[:size], offset); err != nil {
			panic(err)
		}
		data = data[size:]
	})
}
