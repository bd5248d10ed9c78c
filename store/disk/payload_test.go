package disk

import (
	"errors"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"golang.org/x/sys/unix"
)

func TestPayloadBytesAreKnownOnceWritten(t *testing.T) {
	s := openTest(t, memOptions(newMemDisk(), newJournalFS()))
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 2)
	shard := records[0].ID.Shard
	if got := s.PayloadBytes(ns, shard); got != 0 {
		t.Errorf("%d bytes before anything was written, want 0", got)
	}
	mustWrite(t, s, records)
	if got := s.PayloadBytes(ns, shard); got != records[0].Bytes {
		t.Errorf("%d bytes, want %d", got, records[0].Bytes)
	}
	if got := s.PayloadBytes(ns, shard+1); got != 0 {
		t.Errorf("%d bytes of a shard that was never written, want 0", got)
	}
	if got := s.PayloadBytes(connector.NamespaceDigest{1}, shard); got != 0 {
		t.Errorf("%d bytes of a namespace that is not open, want 0", got)
	}
}

// Two engines of other block sizes that registered before the first record were both taken, and
// one of them found out by saves that failed.
func TestHeldPayloadSizeKeepsOthersOut(t *testing.T) {
	s := openTest(t, memOptions(newMemDisk(), newJournalFS()))
	ns := openNamespace(t, s, "m")
	for range 2 { // two ranks hold the same
		if err := s.HoldPayload(ns, 0, testPayload); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(when string) {
		t.Helper()
		err := s.HoldPayload(ns, 0, 1000)
		var size *store.PayloadSizeError
		if !errors.Is(err, store.ErrPayloadSize) || !errors.As(err, &size) || size.Bytes != 1000 || size.Stored != testPayload {
			t.Errorf("%s: %v", when, err)
		}
		other := chainOf(ns, 100, 1)
		other[0].Bytes = 1000
		if err := writeAll(t, s, other)[0]; !errors.Is(err, store.ErrPayloadSize) {
			t.Errorf("%s: write: %v", when, err)
		}
	}
	refused("no record yet")
	if err := s.HoldPayload(ns, 1, 1000); err != nil {
		t.Errorf("another shard: %v", err)
	}
	records := chainOf(ns, 1, 3)
	mustWrite(t, s, records)
	refused("with records")
	dropAll(t, s, records)
	refused("records gone")
	s.ReleasePayload(ns, 0)
	refused("one of two left")
	s.ReleasePayload(ns, 0)
	if err := s.HoldPayload(ns, 0, 1000); err != nil {
		t.Fatalf("nobody holds the other: %v", err)
	}
	mustWrite(t, s, ofSize(ns, 2, 3, 1000))
	s.ReleasePayload(ns, 0)
	s.ReleasePayload(ns, 1)
	s.ReleasePayload(connector.NamespaceDigest{1}, 0) // not open: nothing
}

// A shard's size is not free while a segment is awaited that may have its records: an engine
// that was let in with another size would have all its saves refused once the segment comes.
func TestPayloadSizeOfRecordsThatAreAwaitedIsNotFree(t *testing.T) {
	t.Parallel()
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	s := openTest(t, o)
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 3)
	mustWrite(t, s, records)
	mustWrite(t, s, ofSize(openNamespace(t, s, "other"), 2, 3, otherPayload)) // a second segment
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	held := d.segmentPaths()[0]
	d.hook(func(op, path string) error {
		if op == "open" && path == held {
			return unix.EIO
		}
		return nil
	})
	s = openTest(t, o)
	ns = openNamespace(t, s, "m")
	if st := s.Stats(); st.AwaitedSegments != 1 || st.Records != 3 {
		t.Fatalf("%d segments are awaited, %d records are there", st.AwaitedSegments, st.Records)
	}
	if err := s.HoldPayload(ns, 0, 1000); !errors.Is(err, store.ErrPayloadSize) {
		t.Errorf("another size, while the records are awaited: %v", err)
	}
	if err := s.HoldPayload(ns, 0, testPayload); err != nil {
		t.Error(err)
	}
	d.hook(func(string, string) error { return nil })
	awaitSegments(t, s)
	mustRead(t, s, records)
	mustWrite(t, s, chainOf(ns, 2, 3))
}
