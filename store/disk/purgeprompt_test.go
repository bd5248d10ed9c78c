package disk

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/disk/namespace"
)

// branch returns n records that go on from a record.
func branch(from *testRecord, chain, n int) []testRecord {
	out := chainOf(from.ID.Namespace, chain, n)
	out[0].Parent = from.ID.Key
	return out
}

// The blocks of a prompt go and what was computed from all of it, durably; other prompts lose only what they share.
func TestAPromptIsRemovedWithWhatContinuesIt(t *testing.T) {
	t.Parallel()
	d, j := newMemDisk(), newJournalFS()
	s := openTest(t, memOptions(d, j))
	ns := openNamespace(t, s, "m")
	bad := chainOf(ns, 1, 20)
	after := branch(&bad[19], 2, 30)
	later := branch(&after[10], 3, 5)
	sibling := branch(&bad[9], 4, 10) // shares ten blocks
	other := chainOf(ns, 5, 10)
	same := chainOf(openNamespace(t, s, "other"), 1, 20) // the same keys
	second := chainOf(ns, 1, 20)                         // another rank's shard of the same blocks
	for i := range second {
		second[i].ID.Shard = 1
	}
	for _, records := range [][]testRecord{bad, after, later, sibling, other, same, second} {
		mustWrite(t, s, records)
	}
	shards, keys := []connector.Shard{0, 1}, keysOf(bad)
	want := int64(len(bad) + len(second))
	for _, dry := range []bool{true, false} {
		r, err := s.PurgePrompt(t.Context(), ns, shards, keys, purgeWait, dry)
		if err != nil || r.Records != want || r.Continuations != int64(len(after)+len(later)) || r.Bytes != (want+r.Continuations)*testPayload || r.Incomplete {
			t.Fatalf("dry %v: %+v, %v", dry, r, err)
		}
		if n := lookup(s, ns, bad); n != len(bad) && dry {
			t.Fatalf("%d blocks are left after a dry run", n)
		}
	}
	var journalAfter *vfs.MemFS
	crashed := d.crash(seed.Random(t, 0), func() { journalAfter = j.CrashClone(vfs.CrashCloneCfg{}) })
	again := openTest(t, memOptions(crashed, journalAfter))
	for _, s := range []*Store{s, again} {
		openNamespace(t, s, "m")
		openNamespace(t, s, "other")
		for _, gone := range [][]testRecord{bad, after, later, second} {
			for i := range gone {
				if isPresent(s, gone[i].ID) {
					t.Fatalf("%v is there", gone[i].ID.Key)
				}
			}
		}
		mustBalance(t, s)
	}
	for _, kept := range [][]testRecord{sibling, other, same} {
		mustRead(t, s, kept)
		mustRead(t, again, kept)
	}
	mustWrite(t, s, bad)
	if n := lookup(s, ns, bad); n != len(bad) {
		t.Errorf("%d blocks are found", n)
	}
	if n := s.Stats().Purged; n != uint64(want)+35 {
		t.Errorf("%d records are counted", n)
	}
	if r, err := s.PurgePrompt(t.Context(), ns, shards, keysOf(chainOf(ns, 9, 3)), purgeWait, false); err != nil || r.Records+r.Continuations != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := s.PurgePrompt(t.Context(), connector.NamespaceDigest{1}, shards, keys, purgeWait, false); !errors.Is(err, namespace.ErrNotOpen) {
		t.Errorf("%v", err)
	}
}

// Loads that hold records are waited for. After that they find them gone, never others; and what is saved meanwhile stays.
func TestARemovalOfAPromptDoesNotWaitForEver(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 10)
	mustWrite(t, s, records)
	n, lease := s.Lookup(ns, []connector.Shard{0}, keysOf(records[:4]), time.Minute)
	if n != 4 {
		t.Fatal(n)
	}
	defer s.Release(lease)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if r, err := s.PurgePrompt(t.Context(), ns, []connector.Shard{0}, keysOf(records), 200*time.Millisecond, false); err != nil || r.Records < 9 {
			t.Errorf("%+v, %v", r, err)
		}
	}()
	for s.table.Len() == len(records) {
		time.Sleep(time.Millisecond)
	}
	if s.table.Len() == 4 {
		mustWrite(t, s, records[:1]) // of one that the load holds
	}
	<-ended
	for i := 1; i < 4; i++ {
		if isPresent(s, records[i].ID) {
			t.Errorf("record %d is there", i)
		}
	}
	mustWrite(t, s, records) // no slot of those that the lease holds is used
	mustRead(t, s, records)
	s.Release(lease)
	mustBalance(t, s)
}
