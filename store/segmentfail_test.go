package store

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/internal/disk"
)

// noSegments is the file system on which no segment can be made.
type noSegments struct {
	disk.OS
	tried atomic.Int64
}

func (f *noSegments) OpenFile(path string, create, direct bool) (disk.File, error) {
	if create && strings.Contains(path, segmentPrefix) {
		f.tried.Add(1)
		return nil, unix.EIO
	}
	return f.OS.OpenFile(path, create, direct)
}

// A disk on which no segment can be made must cost saves, not a processor for ever.
func TestWritesEndWhereNoSegmentCanBeMade(t *testing.T) {
	f := new(noSegments)
	const slotWait = 100 * time.Millisecond
	o := Options{Dir: t.TempDir(), MaxBytes: 64 << 20, SlotWait: slotWait, Writers: 1, Logger: slog.New(slog.DiscardHandler)}.WithFS(f, vfs.Default)
	w := watchCap(t, o)
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	w.of(s)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	ns, err := s.OpenNamespace(&connector.Manifest{
		Engine: "test/1", Model: "m", KVDType: "float32", BlockSize: 16, Groups: []connector.Group{{Layers: 1}},
		TensorParallel: 1, PipelineParallel: 1, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	op := &WriteOp{ID: RecordID{Namespace: ns, Key: connector.Key{1}}, Payload: AlignedBuffer(4096)}
	if _, err := s.Write([]*WriteOp{op}, func(op *WriteOp) { done <- op.Err }); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrBusy) {
		t.Errorf("%v, want ErrBusy", err)
	}
	if n := f.tried.Load(); n > 4*int64(slotWait/recheckInterval) {
		t.Errorf("a segment was tried %d times in %v", n, slotWait)
	}
}

// A segment that cannot be opened counts under the cap, and is not deleted for it.
func TestSegmentThatCannotBeOpenedCountsAndStays(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	for chain := range 100 {
		mustWrite(t, s, chainOf(ns, chain, 20))
	}
	held := s.space.allSegments()[0].path
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	w := watchCap(t, o)
	d.hook(func(op, path string) error {
		if op == "open" && path == held {
			return unix.EIO
		}
		return nil
	})
	s = w.of(openTest(t, o))
	awaitRebuild(t, s)
	if st := s.Stats(); st.SetAsideBytes == 0 {
		t.Error("it is not counted")
	}
	b := openNamespace(t, s, "b")
	for chain := range 60 {
		mustWrite(t, s, chainOf(ns, 1000+chain, 20))
		mustWrite(t, s, ofSize(b, 2000+chain, 2, otherPayload))
	}
	settle(t, s)
	checkAccounting(t, s)
	w.of(nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := d.PhysicalBytes(held); n == 0 || err != nil {
		t.Error("it was deleted")
	}
	d.before.Store(nil)
	s = openTest(t, o)
	awaitRebuild(t, s) // it has the oldest records: now it may be given up for the cap
	checkAccounting(t, s)
}

// An attempt that finds no room under the cap makes nothing, and says nothing of a fault that is
// not over.
func TestNoRoomForASegmentDoesNotEndAnIncident(t *testing.T) {
	o := memOptions(newMemDisk(), newJournalFS())
	var log lockedBuffer
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s := openTest(t, o)
	s.space.noSegment.begins()
	s.space.mu.Lock()
	s.space.maxBytes = 0
	s.space.mu.Unlock()
	s.grow(8192)
	if strings.Contains(log.String(), "again") || !s.space.noSegment.on.Load() {
		t.Errorf("nothing was made, and the log says: %s", log.String())
	}
}
