package disk

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

// testRing has the keys with these numbers; without numbers there is none.
func testRing(t testing.TB, numbers ...int) *seal.Ring {
	t.Helper()
	if len(numbers) == 0 {
		return nil
	}
	keys := make([]seal.Key, len(numbers))
	for k, n := range numbers {
		for i := range keys[k] {
			keys[k][i] = byte(n + i*i)
		}
	}
	r, err := seal.New(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sealedOptions(t testing.TB, dir string, keys ...int) Options {
	o := testOptions(dir)
	o.Ring = testRing(t, keys...)
	return o
}

// slotOf returns the bytes of a record's slot, and puts others in their place.
func slotOf(t *testing.T, s *Store, r *testRecord, put []byte) []byte {
	t.Helper()
	found, ok := s.table.Get(internalID(s, r.ID), false)
	if !ok {
		t.Fatal("record is not there")
	}
	g := s.space.At(found.Ref)
	b := store.AlignedBuffer(int(g.SlotBytes))
	at := g.Offset(g.Location(found.Ref).Slot)
	err := g.File.ReadVec(b, nil, at)
	if err == nil && put != nil {
		copy(b, put)
		err = g.File.WriteVec(b, nil, at)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPayloadsAreSealedOnDisk(t *testing.T) {
	o := sealedOptions(t, t.TempDir(), 1)
	s := openTest(t, o)
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 9)
	for i := range records {
		records[i].Bytes = 1 + i*3001 // some end at a page, or near it
	}
	records[7].Bytes, records[8].Bytes = 8192, 8192-8
	for i := range records {
		records[i].ID.Shard = connector.Shard(i)
	}
	mustWrite(t, s, records)
	mustRead(t, s, records)
	text := records[5].payload()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(o.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, text[:64]) {
			t.Errorf("%s has a payload in the clear", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	mustRead(t, openTest(t, o), records)
}

// TestKeysThatChange: what is not accepted is a miss and stays, whatever the index comes from.
func TestKeysThatChange(t *testing.T) {
	for name, lose := range map[string]string{"snapshot or journal": "none", "journal": recovery.SnapshotFile, "headers": "index"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var ns connector.NamespaceDigest
			reopen := func(keys ...int) *Store {
				if err := os.RemoveAll(filepath.Join(dir, lose)); err != nil {
					t.Fatal(err)
				}
				s := openTest(t, sealedOptions(t, dir, keys...))
				<-s.rebuild.Ended()
				ns = openNamespace(t, s, "m")
				return s
			}
			expect := func(s *Store, first, second int, unsealed, keyless int64) {
				t.Helper()
				for chain, want := range map[int]int{1: first, 2: second} {
					records := chainOf(ns, chain, 8)
					if n := lookupOnly(s, records); n != want {
						t.Errorf("chain %d: %d blocks are there, want %d", chain, n, want)
					}
					mustRead(t, s, records[:want])
				}
				if st := s.Stats(); st.Unsealed != unsealed || st.Keyless != keyless || st.Records != int64(first+second) || st.Corrupt != 0 {
					t.Errorf("%d records, %+v, %d corrupt", st.Records, st.Hidden, st.Corrupt)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			s := reopen()
			mustWrite(t, s, chainOf(ns, 1, 8))
			expect(s, 8, 0, 0, 0)
			if lose == "index" { // a slot that is not in the index is free, and headers alone do not keep it
				expect(reopen(1), 0, 0, 8, 0)
				return
			}
			expect(reopen(1), 0, 0, 8, 0) // a key file is new: nothing else is accepted
			expect(reopen(), 8, 0, 0, 0)
			s = reopen(1)
			// The slots of what is not used are free, and there are others.
			mustWrite(t, s, chainOf(ns, 2, 8))
			left := s.Stats().Unsealed
			expect(s, 0, 8, left, 0)
			s = reopen(2, 1) // rotation
			st := s.Stats()
			expect(s, 0, 8, st.Unsealed, 0)
			s = reopen(2) // the old key is dropped
			expect(s, 0, 0, st.Unsealed, 8)
			s = reopen(3, 1)
			expect(s, 0, 8, st.Unsealed, 0)
		})
	}
}

func TestMissingKeyIsNamed(t *testing.T) {
	o := sealedOptions(t, t.TempDir(), 1)
	s := openTest(t, o)
	mustWrite(t, s, chainOf(openNamespace(t, s, "m"), 1, 3))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	wrong := sealedOptions(t, o.Dir, 2)
	wrong.Logger = slog.New(slog.NewTextHandler(&log, nil))
	openTest(t, wrong)
	if n := strings.Count(log.String(), seal.KeyName(o.Ring.KeyID())); n != 1 {
		t.Errorf("the key that is lacked is named %d times:\n%s", n, log.String())
	}
}

// Whatever bit of a sealed record changes, and wherever the record is moved, no wrong byte is served.
func TestDamagedAndMovedSealedRecordsAreMisses(t *testing.T) {
	s := openTest(t, sealedOptions(t, t.TempDir(), 1))
	records := chainOf(openNamespace(t, s, "m"), 1, 60)
	mustWrite(t, s, records)
	slotBytes := record.HeaderBytes + testPayload
	for i := range 50 {
		b := slotOf(t, s, &records[i], nil)
		at := i * (slotBytes - 1) / 49
		b[at] ^= 1 << (i % 8)
		slotOf(t, s, &records[i], b)
		if err := readAll(t, s, records[i:i+1])[0]; err == nil {
			t.Errorf("byte %d was changed", at)
		}
	}
	slotOf(t, s, &records[51], slotOf(t, s, &records[50], nil))
	if err := readAll(t, s, records[51:52])[0]; !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a moved record: %v", err)
	}
	mustRead(t, s, records[52:])
	mustRead(t, s, records[50:51])
}

// What somebody without the key put in the place of a record is a miss, and a save takes its place.
func TestForgedRecordsAreReplaced(t *testing.T) {
	s := openTest(t, sealedOptions(t, t.TempDir(), 1))
	records := chainOf(openNamespace(t, s, "m"), 1, 2)
	mustWrite(t, s, records)
	for i, ring := range []*seal.Ring{nil, testRing(t, 2)} {
		b := slotOf(t, s, &records[i], nil)
		var h record.Header
		if err := h.Decode(b[:record.HeaderBytes]); err != nil {
			t.Fatal(err)
		}
		forger := record.Builder{Ring: ring}
		forged := make([]byte, len(b)+record.HeaderBytes)
		forger.BuildSlot(forged, &h, bytes.Repeat([]byte{7}, testPayload), 0)
		slotOf(t, s, &records[i], forged[:len(b)])
		if err := readAll(t, s, records[i:i+1])[0]; !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%v", err)
		}
	}
	mustWrite(t, s, records)
	mustRead(t, s, records)
	if n := s.count.Corrupt.Load(); n != 0 {
		t.Errorf("%d are counted as corrupt", n)
	}
}

func TestJournalOfSealedRecordsIsMadeAgain(t *testing.T) {
	o := sealedOptions(t, t.TempDir(), 1)
	s := openTest(t, o)
	records := chainOf(openNamespace(t, s, "m"), 1, 20)
	mustWrite(t, s, records)
	if err := errors.Join(s.Close(), os.RemoveAll(filepath.Join(o.Dir, "index")), os.Remove(filepath.Join(o.Dir, recovery.SnapshotFile))); err != nil {
		t.Fatal(err)
	}
	for _, from := range []Recovery{RecoveredHeaders, RecoveredJournal} {
		s = openTest(t, o)
		<-s.rebuild.Ended()
		if s.Stats().Recovered != from {
			t.Errorf("from %v, want %v", s.Stats().Recovered, from)
		}
		mustRead(t, s, records)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(o.Dir, recovery.SnapshotFile)); err != nil {
			t.Fatal(err)
		}
	}
}

// Without the key, fsck verifies what is stored; with it, the tag. Neither finds fault with what the other
// does not use.
func TestFsckOfSealedRecords(t *testing.T) {
	o := sealedOptions(t, t.TempDir(), 1)
	s := openTest(t, o)
	records := chainOf(openNamespace(t, s, "m"), 1, 20)
	mustWrite(t, s, records)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, keys := range [][]int{{}, {1}, {2}} {
			o.Ring = testRing(t, keys...)
			r := runFsck(t, o, true)
			keyless := int64(20)
			if len(keys) == 1 && keys[0] == 1 {
				keyless = 0
			}
			if !r.Clean() || r.Records != 20 || r.Keyless != keyless || r.CheckedBytes < 20*testPayload {
				t.Errorf("keys %v: %+v", keys, r)
			}
		}
	}
	o.Ring = testRing(t, 1)
	s = openTest(t, o)
	mustRead(t, s, records)
	b := slotOf(t, s, &records[3], nil)
	b[record.HeaderBytes+500] ^= 4
	slotOf(t, s, &records[3], b)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.Ring = nil
	if r := runFsck(t, o, true); len(r.Dropped) != 1 || r.Dropped[0].Key != records[3].ID.Key.String() {
		t.Errorf("%+v", r)
	}
}

func TestScrubOpensWhatIsSealed(t *testing.T) {
	s := openTest(t, sealedOptions(t, t.TempDir(), 1))
	records := chainOf(openNamespace(t, s, "m"), 1, 3)
	mustWrite(t, s, records)
	c := newChecker(s, true)
	for i := range records {
		found, _ := s.table.Get(internalID(s, records[i].ID), false)
		if i == 1 {
			b := slotOf(t, s, &records[i], nil)
			b[record.HeaderBytes] ^= 1
			slotOf(t, s, &records[i], b)
		}
		if _, damage, err := c.check(s.space.At(found.Ref), found.Ref); err != nil || (damage != nil) != (i == 1) {
			t.Errorf("record %d: %v, %v", i, damage, err)
		}
	}
	mustRead(t, s, []testRecord{records[0], records[2]})
}

func TestExportTellsThePrefix(t *testing.T) {
	for _, keys := range [][]int{{}, {1}} {
		s := openTest(t, sealedOptions(t, t.TempDir(), keys...))
		records := chainOf(openNamespace(t, s, "m"), 1, 5)
		mustWrite(t, s, records)
		records = append(records, chainOf(records[0].ID.Namespace, 2, 1)...)
		ops := make([]*store.ReadOp, len(records))
		for i := range records {
			ops[i] = &store.ReadOp{Record: store.Record{ID: records[i].ID}, Payload: store.AlignedBuffer(records[i].Bytes)}
		}
		s.Export(t.Context(), ops, func(*store.ReadOp) {})
		for i, op := range ops {
			want := &records[i]
			if i == 5 {
				if !errors.Is(op.Err, store.ErrGone) {
					t.Error(op.Err)
				}
				continue
			}
			if op.Err != nil || op.Parent != want.Parent || op.Proof != want.Proof || op.From != "disk" || !bytes.Equal(op.Payload, want.payload()) {
				t.Errorf("record %d: %v, %+v", i, op.Err, op.Record)
			}
		}
	}
}
