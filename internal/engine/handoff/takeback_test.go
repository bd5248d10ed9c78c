package handoff

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The engine takes its memory back while a load is about to begin.
func TestNothingIsCopiedIntoMemoryThatWasTakenBack(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	n := newNode(t, socket, 8)
	taken := make(chan error, 1)
	b := &backend{tier: n.tier(1, "r", 1, 2)}
	b.registering = func() { // the load looks for the daemon
		go func() { taken <- n.w.Unregister(context.Background()) }()
		for off := false; !off; runtime.Gosched() {
			n.w.copier.mu.Lock()
			off = n.w.copier.off
			n.w.copier.mu.Unlock()
		}
	}
	start(t, socket, b)
	got := n.load()
	if err := <-taken; err != nil || len(got.FailedBlocks) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	written := make([]byte, 8*piece)
	if _, err := n.regions[0].ReadAt(written, 0); err != nil || !bytes.Equal(written, make([]byte, 8*piece)) {
		t.Errorf("engine memory was written to, %v", err)
	}
}

// The daemon lets go of the memory, however long a copy takes.
func TestTheDaemonIsToldOfMemoryTakenBackDuringACopy(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	n := newNode(t, socket, 8)
	b := &backend{tier: n.tier(1, "r", 1, 2)}
	start(t, socket, b)
	if err := n.w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.w.copier.tiers.mu.Lock() // copies wait
	n.begin()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := n.w.Unregister(ctx)
	n.w.copier.tiers.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !errors.Is(err, context.Canceled) || !b.unregistered {
		t.Errorf("Unregister = %v during a copy, the daemon was told: %v", err, b.unregistered)
	}
}

// An engine's step that meets a new daemon does not wait for the copies of others.
func TestAHostTierIsTakenWhileAnotherIsRead(t *testing.T) {
	var s hostTiers
	add := func() {
		if err := s.add(memory(t, 1<<16, unix.F_SEAL_SHRINK), time.Hour); err != nil {
			t.Error(err)
		}
	}
	add()
	added := make(chan struct{})
	s.read(func(tiers [][]byte, _ int) {
		go func() {
			add()
			add() // which gives up the one that is read
			close(added)
		}()
		<-added
		if len(tiers) != 1 || tiers[0][0] != 0 {
			t.Errorf("%d tiers are read, want the first", len(tiers))
		}
	})
	s.close()
}
