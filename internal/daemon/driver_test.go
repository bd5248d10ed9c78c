package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// failingDriver is the host driver, for engine memory that may be gone.
type failingDriver struct {
	gpu.HostDriver
	gone     atomic.Bool
	pinned   int64
	unpinned chan byte
}

func (d *failingDriver) Open(files []*os.File) (gpu.Memory, error) {
	m, err := d.HostDriver.Open(files)
	return failingMemory{m, d}, err
}

// PinHost notes how much is prepared, and the undoing touches it: it must still be there.
func (d *failingDriver) PinHost(_ *os.File, mem []byte) (func() error, error) {
	d.pinned = int64(len(mem))
	return func() error {
		d.unpinned <- mem[len(mem)-1]
		return errors.New("noted")
	}, nil
}

type failingMemory struct {
	gpu.Memory
	d *failingDriver
}

func (m failingMemory) Copy(ctx context.Context, b *gpu.Batch) error {
	if m.d.gone.Load() {
		return gpu.ErrLost
	}
	return m.Memory.Copy(ctx, b)
}

// newTestBackend is a backend on a small store and host tier.
func newTestBackend(t *testing.T, change func(*Options)) (*backend, *host.Arena) {
	t.Helper()
	s, _ := residencyStore(t, 64<<20)
	a, err := host.New(host.Options{Bytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	o := &Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(o)
	}
	o.EnsureDefaults()
	return newBackend(o, store.NewChain(s), a), a
}

// openEngine connects an engine of one rank, whose memory is registered.
func openEngine(t *testing.T, b *backend, m *connector.Manifest) (server.Scheduler, server.Worker) {
	t.Helper()
	s, err := b.OpenScheduler(t.Context(), server.Peer{Engine: "e"}, m)
	if err != nil {
		t.Fatal(err)
	}
	w, err := b.OpenWorker(t.Context(), server.Peer{Engine: "e"}, m, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Register(t.Context(), registration(t)); err != nil {
		t.Fatal(err)
	}
	return s, w
}

// registration is of memory of 16 blocks.
func registration(t *testing.T) *server.Registration {
	t.Helper()
	const blockBytes, layerBytes = 8000, 4000 // as residencySave has them
	page, pageFile, err := fence.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = page.Close() })
	return &server.Registration{Regions: []*os.File{memfd.New(t, 16*blockBytes)}, Fence: pageFile, Layout: connector.Layout{Groups: []connector.GroupLayout{{
		Blocks: 16, Runs: []connector.Run{{Layers: 2, LayerStride: 16 * layerBytes, BlockStride: layerBytes, Bytes: layerBytes}},
	}}}}
}

// The memory that a device copies from is prepared before any copy, and given back before
// it is unmapped.
func TestHostTierIsPreparedForTheDriversCopies(t *testing.T) {
	d := &failingDriver{unpinned: make(chan byte, 1)}
	r := start(t, func(o *Options) { o.Driver, o.HostBytes = d, 64<<20 })
	if d.pinned != 64<<20 {
		t.Errorf("%d bytes prepared, want all of the host tier", d.pinned)
	}
	r.stop()
	<-d.unpinned
}

// startingDriver is one whose device has not started when the daemon is to stop.
type startingDriver struct {
	gpu.HostDriver
	quit chan struct{}
}

func (d *startingDriver) Quit() { close(d.quit) }

// PinHost returns what waits as a session does that waits for the device.
func (d *startingDriver) PinHost(*os.File, []byte) (func() error, error) {
	return func() error { <-d.quit; return nil }, nil
}

// A device that takes its time to start does not keep the daemon from stopping.
func TestAStopIsToldToTheDriver(t *testing.T) {
	r := start(t, func(o *Options) { o.Driver, o.StopTimeout = &startingDriver{quit: make(chan struct{})}, testWait })
	r.stop()
}

// An engine whose memory is gone gets no hits that it could not load, from the first copy
// that shows it until it registers memory that is there; others go on.
func TestRankWhoseMemoryIsGoneIsOfferedNothing(t *testing.T) {
	d := new(failingDriver)
	b, _ := newTestBackend(t, func(o *Options) { o.Driver = d })
	m := residencyManifest()
	digest := m.Digest()
	keys := residencyChain(connector.Scope{}, 7, 4)
	residencySave(t, b.chain, digest, keys, 0, 1)
	tokens := make([]uint32, 0, 20)
	for i := range 5 {
		tokens = append(tokens, 7, uint32(i), 0, 0)
	}
	offered := func(engine string) int {
		t.Helper()
		s, err := b.OpenScheduler(t.Context(), server.Peer{Engine: engine}, m)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		b.mu.Lock()
		b.tellReady(engine)
		b.mu.Unlock()
		o, err := s.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: tokens, PromptTokens: len(tokens)})
		if err != nil {
			t.Fatal(err)
		}
		return o.Tokens
	}
	w, err := b.OpenWorker(t.Context(), server.Peer{Engine: "e"}, m, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Register(t.Context(), registration(t)); err != nil {
		t.Fatal(err)
	}
	if n := offered("e"); n != 16 {
		t.Fatalf("%d tokens offered, want 16", n)
	}
	d.gone.Store(true)
	plan := connector.Plan{Namespace: digest, Saves: []connector.Transfer{{Blocks: []connector.PlanBlock{{Slot: 3, Key: connector.Key{1}}}}}}
	if r, err := w.Save(t.Context(), plan.Append(nil)); err != nil || r.Dropped != 1 {
		t.Fatalf("Save = %+v, %v; want the block dropped", r, err)
	}
	for range 2 { // a scheduler that connects again changes nothing
		if n, other := offered("e"), offered("f"); n != 0 || other != 16 {
			t.Errorf("%d tokens offered to an engine whose memory is gone, %d to another", n, other)
		}
	}
	d.gone.Store(false)
	if _, err := w.Register(t.Context(), registration(t)); err != nil {
		t.Fatal(err)
	}
	if n := offered("e"); n != 16 {
		t.Errorf("%d tokens offered once there is memory again, want 16", n)
	}
}

// A client hangs up when its memory is refused: that its rank cannot load must outlive the
// session, until it can.
func TestRankThatWasRefusedIsRememberedUntilItRegisters(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	m := residencyManifest()
	ready := func(engine string) bool {
		t.Helper()
		s, err := b.OpenScheduler(t.Context(), server.Peer{Engine: engine}, m)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.notReady(s.(*schedulerSession), b.trouble(engine)) == ""
	}
	register := func(engine string, rank int, spoil func(*server.Registration)) {
		t.Helper()
		w, err := b.OpenWorker(t.Context(), server.Peer{Engine: engine}, m, rank)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		r := registration(t)
		spoil(r)
		_, _ = w.Register(t.Context(), r)
	}
	tooSmall := func(r *server.Registration) { r.Layout.Groups[0].Blocks = 1 << 30 }
	register("e", 0, tooSmall)
	if ready("e") || !ready("f") {
		t.Error("a rank that was refused is forgotten, or counts for another engine")
	}
	register("e", 0, func(*server.Registration) {})
	if !ready("e") {
		t.Error("not ready though the rank's memory was taken")
	}
	for i := range 2 * maxRefused {
		s := &workerSession{b: b, peer: server.Peer{Engine: fmt.Sprint(i)}}
		s.setMemory(false, true)
	}
	if len(b.refused) > maxRefused || ready(fmt.Sprint(2*maxRefused-1)) {
		t.Errorf("%d refused ranks are remembered; the last one must be", len(b.refused))
	}
}

// Two instances that were given one id have each their ranks: an engine that cannot report a
// failed load is not ready by the memory of the other's.
func TestStagedInstancesOfOneIDNeedTheirOwnRanks(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	m := residencyManifest()
	p := server.Peer{Engine: "e", Handoff: true}
	var schedulers []*schedulerSession
	for range 2 {
		s, err := b.OpenScheduler(t.Context(), p, m)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		schedulers = append(schedulers, s.(*schedulerSession))
	}
	all := 2 * m.Ranks()
	for n := range all + 1 {
		b.mu.Lock()
		for i, s := range schedulers {
			if ready := b.notReady(s, b.trouble(p.Engine)) == ""; ready != (n == all) {
				t.Errorf("%d ranks of %d: instance %d is ready: %t", n, all, i, ready)
			}
		}
		b.mu.Unlock()
		if n == all {
			break
		}
		w, err := b.OpenWorker(t.Context(), p, m, n%m.Ranks())
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if _, err := w.Register(t.Context(), registration(t)); err != nil {
			t.Fatal(err)
		}
	}
	third, err := b.OpenScheduler(t.Context(), p, m)
	if err != nil {
		t.Fatal(err)
	}
	told := func() string {
		b.mu.Lock()
		defer b.mu.Unlock()
		return schedulers[0].notReady
	}
	if told() == "" {
		t.Error("ready, though a third instance has no ranks yet")
	}
	third.Close()
	if why := told(); why != "" {
		t.Errorf("not ready once the third has gone: %s", why)
	}
}

// Sessions that end leave no share of the host tier behind: it would narrow those of all
// others.
func TestEndedSessionsGiveUpTheirShareOfTheHostTier(t *testing.T) {
	b, a := newTestBackend(t, nil)
	for range 3 {
		s, err := b.OpenScheduler(t.Context(), server.Peer{Engine: "e", Handoff: true}, residencyManifest())
		if err != nil {
			t.Fatal(err)
		}
		w, err := b.OpenWorker(t.Context(), server.Peer{Engine: "e"}, residencyManifest(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if n := a.Stats().Accounts; n != 2 {
			t.Errorf("%d shares, want 2", n)
		}
		w.Close()
		s.Close()
		wait.For(t, "the shares are given back", func() bool { return a.Stats().Accounts == 0 })
	}
	if _, err := b.OpenWorker(t.Context(), server.Peer{Engine: "e"}, residencyManifest(), 99); err == nil || a.Stats().Accounts != 0 {
		t.Errorf("an unknown rank: %v, %d shares", err, a.Stats().Accounts)
	}
}
