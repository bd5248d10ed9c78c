package store

import "testing"

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
