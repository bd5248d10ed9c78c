package client

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
)

// memory is a memfd of size bytes.
func memory(t *testing.T, size int64, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("staging", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "staging")
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

// stagedNode is an engine rank with two layers in two regions, and a daemon that stages.
type stagedNode struct {
	t       *testing.T
	o       Options
	w       *Worker
	regions []*os.File
	layout  connector.Layout
	blocks  [][]byte // payloads by slot
	plan    connector.Plan
}

const stagedPiece = 1 << 12

// stage puts a payload for each slot at a random place of a staging memory.
func (n *stagedNode) stage(seed uint64, request string, slots ...uint32) *os.File {
	n.t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	f := memory(n.t, int64(len(slots)+1)*2*stagedPiece, unix.F_SEAL_SHRINK)
	tr := connector.Transfer{Blocks: make([]connector.PlanBlock, len(slots)), Handoff: []connector.HandoffShard{{Shard: 99, Blocks: make([]connector.HandoffBlock, len(slots))}, {}}}
	for i, at := range rng.Perm(len(slots)) {
		payload := make([]byte, 2*stagedPiece)
		for j := range payload {
			payload[j] = byte(rng.Uint32())
		}
		offset := int64(at)*2*stagedPiece + 128
		if _, err := f.WriteAt(payload, offset); err != nil {
			n.t.Fatal(err)
		}
		n.blocks[slots[i]] = payload
		tr.Blocks[i].Slot = slots[i]
		tr.Handoff[1].Blocks = append(tr.Handoff[1].Blocks, connector.HandoffBlock{Offset: uint64(offset), Sum: xxh3.Hash(payload)})
	}
	n.plan.Loads = []connector.RequestLoad{{Request: request, Transfers: []connector.Transfer{tr}}}
	return f
}

func newStagedNode(t *testing.T, socket string, slots int) *stagedNode {
	t.Helper()
	n := &stagedNode{t: t, o: testOptions(socket), blocks: make([][]byte, slots)}
	n.o.Handoff = true
	n.regions = []*os.File{memory(t, int64(slots)*stagedPiece, 0), memory(t, int64(slots)*stagedPiece+64, 0)}
	n.layout.Groups = []connector.GroupLayout{{Blocks: uint32(slots), Runs: []connector.Run{
		{Region: 1, Offset: 64, Layers: 1, BlockStride: stagedPiece, Bytes: stagedPiece},
		{Region: 0, Layers: 2, LayerStride: stagedPiece / 2, BlockStride: stagedPiece, Bytes: stagedPiece / 2},
	}}}
	var err error
	if n.plan.Namespace, err = n.o.Manifest.Digest(); err != nil {
		t.Fatal(err)
	}
	if n.w, err = NewWorker(n.o, 0, n.layout, n.regions); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.w.Close)
	return n
}

// load runs the plan and returns the one report.
func (n *stagedNode) load() connector.FinishedLoad {
	n.t.Helper()
	l := n.plan.Loads[0]
	planned := connector.PlannedLoad{Request: l.Request}
	for _, b := range l.Transfers[0].Blocks {
		planned.Blocks = append(planned.Blocks, b.Slot)
	}
	n.w.Load(n.t.Context(), n.plan.Append(nil), []connector.PlannedLoad{planned})
	got := pollFor(n.t, n.w)
	if len(got) != 1 || got[0].Request != l.Request {
		n.t.Fatalf("Poll = %+v", got)
	}
	if more := n.w.Poll(n.t.Context()); len(more) != 0 {
		n.t.Errorf("reported again: %+v", more)
	}
	return got[0]
}

// check compares the slots in engine memory.
func (n *stagedNode) check(slots ...uint32) {
	n.t.Helper()
	for _, slot := range slots {
		got := make([]byte, 2*stagedPiece)
		_, _ = n.regions[1].ReadAt(got[:stagedPiece], 64+int64(slot)*stagedPiece)
		_, _ = n.regions[0].ReadAt(got[stagedPiece:], int64(slot)*stagedPiece)
		if !bytes.Equal(got, n.blocks[slot]) {
			n.t.Errorf("slot %d holds other bytes", slot)
		}
	}
}

func TestStagedBlocksAreCopiedWithoutTheDaemon(t *testing.T) {
	socket := socketPath(t)
	n := newStagedNode(t, socket, 8)
	b := new(testBackend)
	b.staging = n.stage(1, "r", 5, 2, 7)
	d := startDaemon(t, socket, b)
	if err := n.w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !b.peers[0].Handoff {
		t.Error("the daemon was not told")
	}
	if got := n.load(); len(got.FailedBlocks) != 0 {
		t.Errorf("%+v", got)
	}
	n.check(5, 2, 7)
	if b.called("load") {
		t.Error("the daemon was asked to load")
	}
	d.stop() // dead: the mapping stays
	if _, err := n.regions[0].WriteAt(make([]byte, 8*stagedPiece), 0); err != nil {
		t.Fatal(err)
	}
	if got := n.load(); len(got.FailedBlocks) != 0 {
		t.Errorf("with the daemon dead: %+v", got)
	}
	n.check(5, 2, 7)
}

func TestStagedLoadOutlivesARestartBetweenMatchAndLoad(t *testing.T) {
	socket := socketPath(t)
	n := newStagedNode(t, socket, 8)
	old := &testBackend{staging: n.stage(1, "old", 1, 2)}
	d := startDaemon(t, socket, old)
	if err := n.w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.stop()
	oldPlan := n.plan
	next := &testBackend{staging: n.stage(2, "new", 3, 4)}
	startDaemon(t, socket, next)
	// A plan of the daemon that this worker has not met yet, then one of the dead daemon.
	if got := n.load(); len(got.FailedBlocks) != 0 || next.registrations() != 1 {
		t.Errorf("plan of the new daemon: %+v", got)
	}
	n.plan = oldPlan
	if got := n.load(); len(got.FailedBlocks) != 0 {
		t.Errorf("plan of the old daemon: %+v", got)
	}
	n.check(1, 2, 3, 4)
	n.w.staged.stagings.retireBehind(1) // as time does
	if got := n.load(); len(got.FailedBlocks) != 2 {
		t.Errorf("plan of a daemon long gone: %+v", got)
	}
}

func TestStagedBlocksThatDoNotCheckOutFail(t *testing.T) {
	socket := socketPath(t)
	n := newStagedNode(t, socket, 8)
	b := new(testBackend)
	b.staging = n.stage(1, "r", 0, 1, 2, 3, 4, 5)
	startDaemon(t, socket, b)
	tr := &n.plan.Loads[0].Transfers[0]
	at := tr.Handoff[1].Blocks
	at[1].Sum++                        // memory was reused
	at[2].Offset = math.MaxUint64 - 10 // far outside
	at[3].Offset = 7*2*stagedPiece - 1 // ends one byte behind
	tr.Blocks[4].Slot = 8              // beyond the layout
	got := n.load()
	slices.Sort(got.FailedBlocks)
	if !slices.Equal(got.FailedBlocks, []uint32{1, 2, 3, 8}) {
		t.Errorf("failed %v, want 1, 2, 3 and 8", got.FailedBlocks)
	}
	n.check(0, 5)
	tr.Handoff = nil
	if got := n.load(); len(got.FailedBlocks) != 6 {
		t.Errorf("not staged: failed %v, want all", got.FailedBlocks)
	}
	n.plan.Namespace[0]++
	if got := n.load(); len(got.FailedBlocks) != 6 {
		t.Errorf("other namespace: failed %v, want all", got.FailedBlocks)
	}
}

func TestLargeStagedLoadsAreCopiedWhole(t *testing.T) {
	socket := socketPath(t)
	const slots = parallelBytes/(2*stagedPiece) + 3
	n := newStagedNode(t, socket, slots)
	all := make([]uint32, slots)
	for i := range all {
		all[i] = uint32(i)
	}
	startDaemon(t, socket, &testBackend{staging: n.stage(3, "r", all...)})
	if got := n.load(); len(got.FailedBlocks) != 0 {
		t.Errorf("%d blocks failed", len(got.FailedBlocks))
	}
	n.check(all...)
}

func TestCanceledStagedLoadWritesNothingMoreAndIsNotReported(t *testing.T) {
	socket := socketPath(t)
	n := newStagedNode(t, socket, 64)
	all := make([]uint32, 64)
	for i := range all {
		all[i] = uint32(i)
	}
	startDaemon(t, socket, &testBackend{staging: n.stage(4, "r", all...)})
	n.w.Load(t.Context(), n.plan.Append(nil), []connector.PlannedLoad{{Request: "r", Blocks: all}})
	if err := n.w.Cancel(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	wantNoReport(t, n.w, "behind Cancel")
	if err := n.w.Unregister(context.Background()); err != nil {
		t.Fatal(err)
	}
	n.w.Close()
	if err := n.w.Connect(t.Context()); err == nil {
		n.w.Load(t.Context(), n.plan.Append(nil), []connector.PlannedLoad{{Request: "r", Blocks: all}})
		if got := n.w.Poll(t.Context()); len(got) != 1 || len(got[0].FailedBlocks) != 64 {
			t.Errorf("Poll behind Close = %+v", got)
		}
	}
}

func TestStagingMemoryThatCouldShrinkIsRefused(t *testing.T) {
	socket := socketPath(t)
	n := newStagedNode(t, socket, 8)
	startDaemon(t, socket, &testBackend{staging: memory(t, 1<<16, 0)})
	if err := n.w.Connect(t.Context()); err == nil {
		t.Error("memory that can shrink was mapped")
	}
}

func TestStagedWorkerRefusesRegionsThatDoNotFitTheLayout(t *testing.T) {
	n := newStagedNode(t, socketPath(t), 8)
	n.layout.Groups[0].Blocks++
	if _, err := NewWorker(n.o, 0, n.layout, n.regions); err == nil {
		t.Error("a layout beyond the region was taken")
	}
}
