package store

import (
	"errors"
	"testing"
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
	if got := s.PayloadBytes(ns+1, shard); got != 0 {
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
		var size *PayloadSizeError
		if !errors.Is(err, ErrPayloadSize) || !errors.As(err, &size) || size.Bytes != 1000 || size.Stored != testPayload {
			t.Errorf("%s: %v", when, err)
		}
		other := chainOf(ns, 100, 1)
		other[0].Bytes = 1000
		if err := writeAll(t, s, other)[0]; !errors.Is(err, ErrPayloadSize) {
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
	s.ReleasePayload(ns+1, 0) // not open: nothing
}
