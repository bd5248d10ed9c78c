package engine

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/engine/model"
)

// fakeStore is what outlives an engine: block bytes by key.
type fakeStore map[connector.Key][]byte

// fakeConnector stands for client and daemon at the engine's seam. It copies blocks
// between the engine's file and a fakeStore, as late as it may: loaded bytes arrive in
// the poll that reports them, and until then the blocks hold garbage.
type fakeConnector struct {
	t         *testing.T
	e         *Engine
	store     fakeStore
	blockSize int
	requests  map[string]*fakeRequest
	loads     []*fakeLoad
	saves     []transfer
	// calls are the connector calls so far, when logged is set.
	logged bool
	calls  []string

	// maxOffer bounds an offer in blocks if it is not negative.
	maxOffer int
	// polls is the number of polls that a load takes.
	polls int
	// fail says which of a load's blocks fail. They are filled with garbage.
	fail func(request string, index int) bool
	// forgetful connectors offer again what failed.
	forgetful bool
}

type fakeRequest struct {
	tokens []uint32
	scope  connector.Scope
	blocks []uint32
	noSave bool
	missed bool
}

type transfer struct {
	block uint32
	key   connector.Key
}

type fakeLoad struct {
	request   string
	transfers []transfer
	polls     int
}

func newFake(t *testing.T, e *Engine, store fakeStore) *fakeConnector {
	f := &fakeConnector{
		t: t, e: e, store: store, blockSize: e.opts.BlockSize, requests: make(map[string]*fakeRequest),
		maxOffer: -1, polls: 2, fail: func(string, int) bool { return false },
	}
	e.Attach(f, f)
	return f
}

func (f *fakeConnector) log(format string, args ...any) {
	if f.logged {
		f.calls = append(f.calls, fmt.Sprintf(format, args...))
	}
}

func (f *fakeConnector) keys(r *fakeRequest, n int) []connector.Key {
	keys := make([]connector.Key, n)
	parent := connector.RootKey(f.blockSize, r.scope)
	for i := range keys {
		keys[i], _ = connector.NextKey(parent, connector.AppendTokens(nil, r.tokens[i*f.blockSize:(i+1)*f.blockSize]), nil)
		parent = keys[i]
	}
	return keys
}

func (f *fakeConnector) Match(_ context.Context, m *connector.MatchRequest) connector.Offer {
	r := f.requests[m.Request]
	if r == nil {
		r = &fakeRequest{scope: m.Scope, noSave: m.NoSave}
		f.requests[m.Request] = r
	}
	r.tokens = slices.Clone(m.Tokens)
	n := 0
	if !m.NoLoad && !r.missed {
		full := (len(m.Tokens) - 1) / f.blockSize
		for _, k := range f.keys(r, full)[m.Computed/f.blockSize:] {
			if f.store[k] == nil || n == f.maxOffer {
				break
			}
			n++
		}
	}
	f.log("match %s computed %d: %d", m.Request, m.Computed, n*f.blockSize)
	return connector.Offer{Tokens: n * f.blockSize, Async: n > 0}
}

func (f *fakeConnector) Step(_ context.Context, m *connector.StepRequest) connector.StepReply {
	f.log("step preempted %v finished %v", m.Preempted, m.Finished)
	var reply connector.StepReply
	f.saves = nil
	for _, a := range m.Allocs {
		f.log("  alloc %s computed %d external %d", a.Request, a.Computed, a.External)
		r := f.requests[a.Request]
		r.blocks = slices.Clone(a.Blocks)
		if a.External == 0 {
			continue
		}
		first, end := a.Computed/f.blockSize, (a.Computed+a.External)/f.blockSize
		load := &fakeLoad{request: a.Request, polls: f.polls}
		for i, k := range f.keys(r, end)[first:] {
			load.transfers = append(load.transfers, transfer{block: a.Blocks[first+i], key: k})
		}
		f.loads = append(f.loads, load)
		reply.Loads = append(reply.Loads, connector.PlannedLoad{Request: a.Request, Blocks: a.Blocks[first:end]})
	}
	for _, s := range m.Scheduled {
		f.log("  scheduled %s reset %t computed %d count %d", s.Request, s.Reset, s.Computed, s.Count)
		f.planSaves(&s)
	}
	for _, id := range m.Finished {
		delete(f.requests, id)
	}
	if len(reply.Loads)+len(f.saves) > 0 {
		reply.Metadata = []byte("plan")
	}
	return reply
}

func (f *fakeConnector) planSaves(s *connector.Scheduled) {
	r := f.requests[s.Request]
	if s.Reset {
		r.blocks = nil
	}
	r.blocks = append(r.blocks, s.NewBlocks...)
	r.tokens = append(r.tokens, s.NewTokens...)
	if end := s.Computed + s.Count; end > len(r.tokens) || end > len(r.blocks)*f.blockSize {
		f.t.Errorf("request %s is computed up to %d, told are %d tokens, %d blocks", s.Request, end, len(r.tokens), len(r.blocks))
	}
	if r.noSave {
		return
	}
	for i, k := range f.keys(r, (s.Computed+s.Count)/f.blockSize) {
		if f.store[k] == nil {
			f.saves = append(f.saves, transfer{block: r.blocks[i], key: k})
		}
	}
}

func (f *fakeConnector) Loaded(_ context.Context, m *connector.LoadedReport) {
	f.log("loaded %v invalid blocks %d", m.Done, len(m.InvalidBlocks))
	for _, id := range m.Done {
		if r := f.requests[id]; r != nil && len(m.InvalidBlocks) > 0 {
			r.missed = !f.forgetful
		}
	}
}

func (f *fakeConnector) Load(_ context.Context, metadata []byte, loads []connector.PlannedLoad) {
	if len(loads) > 0 {
		f.log("load")
	}
}

func (f *fakeConnector) Save(context.Context, []byte) connector.SaveResult {
	if len(f.saves) > 0 {
		f.log("save %d", len(f.saves))
	}
	for _, s := range f.saves {
		f.store[s.key] = readBlock(f.t, f.e, s.block)
	}
	return connector.SaveResult{Taken: len(f.saves)}
}

func (f *fakeConnector) Poll(context.Context) []connector.FinishedLoad {
	var done []connector.FinishedLoad
	f.loads = slices.DeleteFunc(f.loads, func(l *fakeLoad) bool {
		l.polls--
		ended := l.polls <= 0
		var failed []uint32
		for i, x := range l.transfers {
			data := f.store[x.key]
			if bad := f.fail(l.request, i); bad || !ended {
				data = bytes.Repeat([]byte{0x3f}, len(data))
				if bad {
					failed = append(failed, x.block)
				}
			}
			writeBlock(f.t, f.e, x.block, data)
		}
		if ended {
			done = append(done, connector.FinishedLoad{Request: l.request, FailedBlocks: failed})
		}
		return ended
	})
	if len(done) > 0 {
		f.log("poll %d", len(done))
	}
	return done
}

// pieces calls do with the place of each piece of a block in the engine's file.
func pieces(l connector.Layout, block uint32, do func(offset int64, size int)) {
	for _, r := range l.Runs {
		for layer := range uint64(r.Layers) {
			do(int64(r.Offset+layer*r.LayerStride+uint64(block)*r.BlockStride), int(r.Bytes))
		}
	}
}

// readBlock reads a block through the engine's file, as another process would.
func readBlock(t *testing.T, e *Engine, block uint32) []byte {
	var data []byte
	pieces(e.Layout(), block, func(offset int64, size int) {
		piece := make([]byte, size)
		if _, err := e.File().ReadAt(piece, offset); err != nil {
			t.Fatal(err)
		}
		data = append(data, piece...)
	})
	return data
}

func writeBlock(t *testing.T, e *Engine, block uint32, data []byte) {
	pieces(e.Layout(), block, func(offset int64, size int) {
		if _, err := e.File().WriteAt(data[:size], offset); err != nil {
			t.Fatal(err)
		}
		data = data[size:]
	})
}

func newEngine(t *testing.T, change func(*Options)) *Engine {
	t.Helper()
	o := Options{Model: model.Tiny(7), Blocks: 200}
	if change != nil {
		change(&o)
	}
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// run serves requests and checks that the engine has all its blocks afterwards.
func run(t *testing.T, e *Engine, requests ...Request) []Result {
	t.Helper()
	results, err := e.Run(t.Context(), requests)
	if err != nil {
		t.Fatal(err)
	}
	if e.pool.free != e.opts.Blocks-1 {
		t.Fatalf("%d of %d blocks are free in an idle engine", e.pool.free, e.opts.Blocks-1)
	}
	return results
}
