package disk

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/record"
)

// unpack puts a store directory of testdata into a fresh one.
func unpack(t *testing.T, archive string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o700)
		} else {
			var b []byte
			if b, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, b, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// format1Records are the records of the stores in testdata/format1: three chains in each of
// two namespaces.
func format1Records(t *testing.T, s *Store) []testRecord {
	t.Helper()
	var out []testRecord
	for m, model := range []string{"first", "second"} {
		ns := openNamespace(t, s, model)
		for chain := range 3 {
			records := chainOf(ns, 10*m+chain, 8)
			for i := range records {
				records[i].Bytes = 600
				// The program of format 1 had numbers in place of digests.
				records[i].Seed = uint64(ns[0]) ^ uint64(m)
			}
			out = append(out, records...)
		}
	}
	return out
}

// TestFormat1StoreIsRead opens stores that the last program of format 1 made: one stopped
// cleanly, one copied while it was open, and both without their journals.
func TestFormat1StoreIsRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, archive string
		lost          string
		recovered     recovery.Recovery // always: format 1 has no STAMP that vouches for the journal
	}{
		{"clean", "clean", "", recovery.RecoveredHeaders},
		{"killed", "killed", "", recovery.RecoveredHeaders},
		{"snapshot lost", "clean", recovery.SnapshotFile, recovery.RecoveredHeaders},
		{"journal lost", "clean", recovery.JournalDir, recovery.RecoveredHeaders},
		{"killed, journal lost", "killed", recovery.JournalDir, recovery.RecoveredHeaders},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := unpack(t, filepath.Join("testdata", "format1", c.archive+".tar.gz"))
			if c.lost != "" {
				if err := os.RemoveAll(filepath.Join(dir, c.lost)); err != nil {
					t.Fatal(err)
				}
			}
			s := openTest(t, testOptions(dir))
			awaitRebuild(t, s)
			if got := s.Stats().Recovered; got != c.recovered {
				t.Errorf("recovered from %v, want %v", got, c.recovered)
			}
			if v := formatVersion(t, dir); v != record.Version {
				t.Errorf("FORMAT says %d", v)
			}
			old := format1Records(t, s)
			mustRead(t, s, old)
			// New records of format 2 lie among them.
			more := chainOf(old[0].ID.Namespace, 77, 8)
			for i := range more {
				more[i].Bytes = 600
			}
			mustWrite(t, s, more)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			scopes := make(map[connector.ScopeDigest]int)
			again := openTest(t, testOptions(dir))
			mustRead(t, again, append(format1Records(t, again), more...))
			err := again.journal.Records(0, 1<<32-1, func(r *journal.Record) error { scopes[r.Scope]++; return nil }, func(err error) { t.Error(err) })
			if err != nil || scopes[connector.UnknownScope] != len(old) || scopes[connector.ScopeDigest{}] != len(more) {
				t.Errorf("%v, %v", scopes, err)
			}
		})
	}
}

func formatVersion(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, recovery.FormatFile))
	if err != nil {
		t.Fatal(err)
	}
	var note format.Note
	if err := json.Unmarshal(b, &note); err != nil {
		t.Fatal(err)
	}
	return note.Format
}

// TestScopeOutlivesTheJournal: a record's scope and depth are in its header.
func TestScopeOutlivesTheJournal(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, testOptions(dir))
	want := connector.Scope{Salt: "tenant", LoRA: "adapter"}.Digest()
	records := chainOf(openNamespace(t, s, "m"), 1, 5)
	for i := range records {
		r := &records[i]
		op := &store.WriteOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Scope: want, Payload: r.payload()}
		done := make(chan struct{})
		if _, err := s.Write([]*store.WriteOp{op}, func(*store.WriteOp) { close(done) }); err != nil {
			t.Fatal(err)
		}
		if <-done; op.Err != nil {
			t.Fatal(op.Err)
		}
	}
	check := func(s *Store) {
		n := 0
		err := s.journal.Records(0, 1<<32-1, func(r *journal.Record) error {
			n++
			if r.Scope != want || r.KeyScheme != record.KeySchemeTokens || keyOf(1, int(r.Depth)) != r.Key {
				t.Errorf("scope %x, scheme %d, depth %d of key %v", r.Scope, r.KeyScheme, r.Depth, r.Key)
			}
			return nil
		}, func(err error) { t.Error(err) })
		if err != nil || n != len(records) {
			t.Errorf("%d records, %v", n, err)
		}
	}
	check(s)
	if err := errors.Join(s.Close(), os.RemoveAll(filepath.Join(dir, recovery.JournalDir))); err != nil {
		t.Fatal(err)
	}
	again := openTest(t, testOptions(dir))
	awaitRebuild(t, again)
	check(again)
}

// TestRecordOfANewerProgramIsAMiss: what this program cannot read is neither served nor
// called damaged.
func TestRecordOfANewerProgramIsAMiss(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	records := chainOf(openNamespace(t, s, "m"), 1, 2)
	mustWrite(t, s, records)
	found, _ := s.table.Get(internalID(s, records[1].ID), false)
	g := s.space.At(found.Ref)
	at := g.Offset(g.Location(found.Ref).Slot)
	b := store.AlignedBuffer(record.HeaderBytes)
	if err := g.File.ReadVec(b, nil, at); err != nil {
		t.Fatal(err)
	}
	var r record.Header
	if err := r.Decode(b); err != nil {
		t.Fatal(err)
	}
	r.Needs |= 1 << 7
	r.Cipher.Algorithm = 2
	r.Encode(b)
	if err := g.File.WriteVec(b, nil, at); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := readAll(t, s, records)[1]; !errors.Is(err, store.ErrUnreadable) || !errors.Is(err, store.ErrGone) {
			t.Errorf("%v", err)
		}
	}
	st := s.Stats()
	if _, damage, err := newChecker(s, true).check(g, found.Ref); damage != nil || err != nil || st.Records != 2 || s.count.Corrupt.Load() != 0 {
		t.Errorf("%v, %v, %d records, %d corrupt", damage, err, st.Records, s.count.Corrupt.Load())
	}
	// Nor is it offered where the journal says so.
	batch := s.journal.NewBatch()
	err := batch.PutRecord(&journal.Record{Location: g.Location(found.Ref), Key: r.Key, Parent: r.Parent, Bytes: r.PayloadBytes, Seq: r.Seq, Algorithm: 2})
	if err := errors.Join(err, batch.Commit(), s.Close(), os.Remove(filepath.Join(s.opts.Dir, recovery.SnapshotFile))); err != nil {
		t.Fatal(err)
	}
	again := openTest(t, s.opts)
	if n := lookup(again, records[0].ID.Namespace, records); n != 1 {
		t.Errorf("%d records found, want 1", n)
	}
}
