package handoff

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// backend is a daemon whose host tier is given.
type backend struct {
	tier *os.File

	// registering, if not nil, is called while a worker registers.
	registering func()

	mu            sync.Mutex
	registrations int
	unregistered  bool
	peer          server.Peer
	saved         []byte
}

// met returns what the daemon has seen so far.
func (b *backend) met() (registrations int, peer server.Peer, saved string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.registrations, b.peer, string(b.saved)
}

func (b *backend) OpenScheduler(context.Context, server.Peer, *connector.Manifest) (server.Scheduler, error) {
	return scheduler{}, nil
}

func (b *backend) OpenWorker(_ context.Context, p server.Peer, _ *connector.Manifest, _ int) (server.Worker, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.peer = p
	return &session{b: b}, nil
}

// scheduler offers what its test says and plans saves; session has no Load: the daemon is
// not asked to.
type scheduler struct{ server.Scheduler }

func (scheduler) Match(context.Context, *connector.MatchRequest) (connector.Offer, error) {
	return connector.Offer{Tokens: 64, Handoff: twoShards()}, nil
}

func (scheduler) Step(context.Context, *connector.StepRequest) (connector.StepReply, error) {
	return connector.StepReply{Metadata: []byte("saves")}, nil
}

func (scheduler) Close() {}

type session struct {
	server.Worker
	b *backend
}

func (s *session) Register(_ context.Context, r *server.Registration) (server.Registered, error) {
	for _, f := range append(r.Regions, r.Fence) {
		_ = f.Close()
	}
	if s.b.registering != nil {
		s.b.registering()
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.registrations++
	return server.Registered{BlockBytes: []int{1}, HostTier: s.b.tier}, nil
}

func (s *session) Save(_ context.Context, meta []byte) (connector.SaveResult, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.saved = slices.Clone(meta)
	return connector.SaveResult{Taken: 1}, nil
}

func (s *session) Unregister(context.Context) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.unregistered = true
	return nil
}

func (s *session) Close() {}

// start starts a daemon; stop ends it.
func start(t *testing.T, socket string, b *backend) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l, err := server.Listen(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := server.New(server.Options{Epoch: rand.Uint64() | 1, Version: "test", LoadTimeout: time.Minute, UID: os.Getuid()}, b)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func testOptions(socket string) client.Options {
	return client.Options{Socket: socket, Engine: "engine", CallTimeout: 30 * time.Second, RetryInterval: time.Nanosecond, Manifest: *manifests.New()}
}

// memory is a memfd of size bytes.
func memory(t *testing.T, size int64, seals int) *os.File {
	t.Helper()
	f := memfd.Sealable(t, size)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

// node is an engine rank with two layers in two regions.
type node struct {
	t       *testing.T
	o       client.Options
	w       *Worker
	regions []*os.File
	layout  connector.Layout
	blocks  [][]byte // payloads by slot
	plan    plan
}

const piece = 1 << 12

// tier puts a payload for each slot at a random place of a daemon's host tier, and plans
// their load.
func (n *node) tier(seed uint64, request string, slots ...uint32) *os.File {
	n.t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	f := memory(n.t, int64(len(slots)+1)*2*piece, unix.F_SEAL_SHRINK)
	st := stretch{
		Stretch: connector.Stretch{Slots: slices.Clone(slots)},
		Shards:  []connector.HandoffShard{{Shard: 99, Blocks: make([]connector.HandoffBlock, len(slots))}, {}},
	}
	for i, at := range rng.Perm(len(slots)) {
		payload := make([]byte, 2*piece)
		for j := range payload {
			payload[j] = byte(rng.Uint32())
		}
		offset := int64(at)*2*piece + 128
		if _, err := f.WriteAt(payload, offset); err != nil {
			n.t.Fatal(err)
		}
		n.blocks[slots[i]] = payload
		st.Shards[1].Blocks = append(st.Shards[1].Blocks, connector.HandoffBlock{Offset: uint64(offset), Sum: xxh3.Hash(payload)})
	}
	n.plan.Loads = []load{{Request: request, Stretches: []stretch{st}}}
	return f
}

func newNode(t *testing.T, socket string, slots int) *node {
	t.Helper()
	n := &node{t: t, o: testOptions(socket), blocks: make([][]byte, slots)}
	n.regions = []*os.File{memory(t, int64(slots)*piece, 0), memory(t, int64(slots)*piece+64, 0)}
	n.layout.Groups = []connector.GroupLayout{{Blocks: uint32(slots), Runs: []connector.Run{
		{Region: 1, Offset: 64, Layers: 1, BlockStride: piece, Bytes: piece},
		{Region: 0, Layers: 2, LayerStride: piece / 2, BlockStride: piece, Bytes: piece / 2},
	}}}
	n.plan.Namespace = n.o.Manifest.Digest().String()
	var err error
	if n.w, err = NewWorker(n.o, 0, n.layout, n.regions); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.w.Close)
	return n
}

// begin starts the planned load.
func (n *node) begin() {
	l := n.plan.Loads[0]
	n.w.Load(n.t.Context(), n.plan.encode(), []connector.PlannedLoad{{Request: l.Request, Blocks: l.Stretches[0].Slots}})
}

// load runs the plan and returns the one report.
func (n *node) load() connector.FinishedLoad {
	n.t.Helper()
	n.begin()
	n.w.copier.mu.Lock()
	var running []*job
	for j := range n.w.copier.jobs {
		running = append(running, j)
	}
	n.w.copier.mu.Unlock()
	for _, j := range running {
		<-j.done
	}
	got := n.w.Poll(n.t.Context())
	if len(got) != 1 || got[0].Request != n.plan.Loads[0].Request {
		n.t.Fatalf("Poll = %+v", got)
	}
	if more := n.w.Poll(n.t.Context()); len(more) != 0 {
		n.t.Errorf("reported again: %+v", more)
	}
	return got[0]
}

// check compares the slots in engine memory.
func (n *node) check(slots ...uint32) {
	n.t.Helper()
	for _, slot := range slots {
		got := make([]byte, 2*piece)
		_, _ = n.regions[1].ReadAt(got[:piece], 64+int64(slot)*piece)
		_, _ = n.regions[0].ReadAt(got[piece:], int64(slot)*piece)
		if !bytes.Equal(got, n.blocks[slot]) {
			n.t.Errorf("slot %d holds other bytes", slot)
		}
	}
}

func TestBlocksAreCopiedWithoutTheDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	n := newNode(t, socket, 8)
	b := &backend{tier: n.tier(1, "r", 5, 2, 7)}
	stop := start(t, socket, b)
	if err := n.w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, peer, _ := b.met(); !peer.Handoff {
		t.Error("the daemon was not told")
	}
	if got := n.load(); len(got.FailedBlocks) != 0 {
		t.Errorf("%+v", got)
	}
	n.check(5, 2, 7)
	stop() // dead: the mapping stays
	if _, err := n.regions[0].WriteAt(make([]byte, 8*piece), 0); err != nil {
		t.Fatal(err)
	}
	if got := n.load(); len(got.FailedBlocks) != 0 {
		t.Errorf("with the daemon dead: %+v", got)
	}
	n.check(5, 2, 7)
}

// The leader's saves pass through the engine as they are, and loads need nobody.
func TestStepPlansLoadsBesideTheLeadersSaves(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s, err := NewScheduler(testOptions(socket))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := new(backend)
	stop := start(t, socket, b)
	if got := s.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 128)}); got.Tokens != 64 {
		t.Fatalf("offer %+v", got)
	}
	reply := s.Step(t.Context(), &connector.StepRequest{})
	n := newNode(t, socket, 8)
	got := n.w.Save(t.Context(), reply.Metadata)
	if _, _, saved := b.met(); got.Taken != 1 || saved != "saves" || len(reply.Loads) != 0 {
		t.Errorf("%+v: the daemon was given %q", got, saved)
	}
	stop()
	step := connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{{1, 2, 3, 4}}, Computed: 32, External: 32}}}
	for _, offered := range []bool{true, false} { // the second time nothing is left of the offer
		reply = s.Step(t.Context(), &step)
		p, err := parsePlan(reply.Metadata)
		if err != nil || len(reply.Loads) != 1 || !slices.Equal(reply.Loads[0].Blocks, []uint32{3, 4}) || len(p.Loads) != 1 || len(p.Saves) != 0 {
			t.Fatalf("%+v, %v", reply, err)
		}
		if got := p.Loads[0].Stretches[0].Shards != nil; got != offered {
			t.Errorf("planned with places: %v, want %v", got, offered)
		}
	}
}

func TestLoadOutlivesARestartBetweenMatchAndLoad(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	n := newNode(t, socket, 8)
	stop := start(t, socket, &backend{tier: n.tier(1, "old", 1, 2)})
	if err := n.w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	oldPlan := n.plan
	next := &backend{tier: n.tier(2, "new", 3, 4)}
	start(t, socket, next)
	// An offer of the daemon that this worker has not met yet, then one of the dead daemon.
	got := n.load()
	if registrations, _, _ := next.met(); len(got.FailedBlocks) != 0 || registrations != 1 {
		t.Errorf("offer of the new daemon: %+v, %d registrations", got, registrations)
	}
	n.plan = oldPlan
	if got := n.load(); len(got.FailedBlocks) != 0 {
		t.Errorf("offer of the old daemon: %+v", got)
	}
	n.check(1, 2, 3, 4)
	n.w.copier.tiers.mu.Lock()
	n.w.copier.tiers.keepNewest(1) // as time does
	n.w.copier.tiers.mu.Unlock()
	if got := n.load(); len(got.FailedBlocks) != 2 {
		t.Errorf("offer of a daemon long gone: %+v", got)
	}
}

func TestBlocksThatDoNotCheckOutFail(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	n := newNode(t, socket, 8)
	start(t, socket, &backend{tier: n.tier(1, "r", 0, 1, 2, 3, 4, 5)})
	st := &n.plan.Loads[0].Stretches[0]
	at := st.Shards[1].Blocks
	at[1].Sum++                        // memory was reused
	at[2].Offset = math.MaxUint64 - 10 // far outside
	at[3].Offset = 7*2*piece - 1       // ends one byte after the end
	st.Slots[4] = 8                    // beyond the layout
	got := n.load()
	slices.Sort(got.FailedBlocks)
	if !slices.Equal(got.FailedBlocks, []uint32{1, 2, 3, 8}) {
		t.Errorf("failed %v, want 1, 2, 3 and 8", got.FailedBlocks)
	}
	n.check(0, 5)
	st.Shards = nil
	if got := n.load(); len(got.FailedBlocks) != 6 {
		t.Errorf("no places: failed %v, want all", got.FailedBlocks)
	}
	n.plan.Namespace = "other"
	if got := n.load(); len(got.FailedBlocks) != 6 {
		t.Errorf("other namespace: failed %v, want all", got.FailedBlocks)
	}
}

func TestLargeLoadsAreCopiedWhole(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	const slots = parallelBytes/(2*piece) + 3
	n := newNode(t, socket, slots)
	all := make([]uint32, slots)
	for i := range all {
		all[i] = uint32(i)
	}
	start(t, socket, &backend{tier: n.tier(3, "r", all...)})
	if got := n.load(); len(got.FailedBlocks) != 0 {
		t.Errorf("%d blocks failed", len(got.FailedBlocks))
	}
	n.check(all...)
}

func TestCanceledLoadWritesNothingMoreAndIsNotReported(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	n := newNode(t, socket, 64)
	all := make([]uint32, 64)
	for i := range all {
		all[i] = uint32(i)
	}
	start(t, socket, &backend{tier: n.tier(4, "r", all...)})
	n.begin()
	if err := n.w.Cancel(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	if got := n.w.Poll(t.Context()); len(got) != 0 { // its goroutine has ended
		t.Fatalf("Poll = %+v after Cancel", got)
	}
	if err := n.w.Unregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n.load(); len(got.FailedBlocks) != 64 {
		t.Errorf("%+v after Unregister", got)
	}
	n.w.Close()
	if err := n.w.Connect(t.Context()); err == nil {
		if got := n.load(); len(got.FailedBlocks) != 64 {
			t.Errorf("%+v after Close", got)
		}
	}
}

// A load that has looked for a newer daemon while the memory was taken back copies nothing any more.
func TestLoadThatUnregisterOvertakesIsNotCopied(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	n := newNode(t, socket, 8)
	if err := n.w.copier.tiers.add(n.tier(1, "r", 5, 2, 7), time.Hour); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	// The plan takes long to read, so that Unregister returns before.
	n.plan.Saves = make([]byte, 8<<20)
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		n.begin()
	}()
	c, err := l.Accept() // by the load
	if err != nil {
		t.Fatal(err)
	}
	unregistered := make(chan error)
	go func() { unregistered <- n.w.Unregister(t.Context()) }()
	wait.For(t, "nothing is loaded any more", func() bool {
		n.w.copier.mu.Lock()
		defer n.w.copier.mu.Unlock()
		return n.w.copier.off
	})
	_ = c.Close()
	if err := <-unregistered; err != nil {
		t.Fatal(err)
	}
	<-loaded
	if got := n.w.Poll(t.Context()); len(got) != 1 || len(got[0].FailedBlocks) != 3 {
		t.Errorf("Poll = %+v, want all blocks as failed", got)
	}
}

func TestMemoryThatWasTakenBackIsNotWrittenWhateverIsCalledBeside(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	n := newNode(t, socket, 8)
	start(t, socket, &backend{tier: n.tier(1, "r", 5, 2, 7)})
	meta, loads := n.plan.encode(), []connector.PlannedLoad{{Request: "r", Blocks: []uint32{5, 2, 7}}}
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for range 2 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				n.w.Load(t.Context(), meta, loads)
				n.w.Poll(t.Context())
				if err := n.w.Cancel(t.Context(), "r"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	mine := make([]byte, 8*piece)
	for round := range 50 {
		if err := n.w.Connect(t.Context()); err != nil {
			t.Error(err)
		}
		if err := n.w.Unregister(t.Context()); err != nil {
			t.Error(err)
		}
		mine[2*piece] = byte(round)
		if _, err := n.regions[0].WriteAt(mine, 0); err != nil {
			t.Error(err)
		}
		runtime.Gosched()
		got := make([]byte, len(mine))
		if _, err := n.regions[0].ReadAt(got, 0); err != nil || !bytes.Equal(got, mine) {
			t.Errorf("round %d: the memory was written after Unregister: %v", round, err)
		}
	}
	close(stop)
	callers.Wait()
}

func TestHostTierThatCouldShrinkIsRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	n := newNode(t, socket, 8)
	start(t, socket, &backend{tier: memory(t, 1<<16, 0)})
	if err := n.w.Connect(t.Context()); err == nil {
		t.Error("memory that can shrink was mapped")
	}
}

func TestRegionsThatDoNotFitTheLayoutAreRefused(t *testing.T) {
	n := newNode(t, filepath.Join(t.TempDir(), "s"), 8)
	n.layout.Groups[0].Blocks++
	if _, err := NewWorker(n.o, 0, n.layout, n.regions); err == nil {
		t.Error("a layout beyond the region was taken")
	}
}
