package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

const testPayload = 24 << 10

func testManifest(model string) *connector.Manifest {
	return &connector.Manifest{
		Engine: "test/1", Model: model, KVDType: "float32", BlockSize: 16, Groups: []connector.Group{{Layers: 2, KVHeads: 1, HeadSize: 8, Layout: "LBHNC"}}, TensorParallel: 1, PipelineParallel: 1,
		KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
}

// testOptions have timeouts that only a broken store or disk reaches.
func testOptions(dir string) Options {
	return Options{
		Dir: dir, MaxBytes: 16 << 20, SegmentBytes: 1 << 20, BarrierInterval: 5 * time.Millisecond,
		ReadTimeout: time.Minute, SlotWait: time.Minute,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func openTest(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, errTestFault) {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func openNamespace(t testing.TB, s *Store, model string) connector.NamespaceDigest {
	t.Helper()
	ns, err := s.OpenNamespace(testManifest(model))
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// internalID is a record's id as the index has it.
func internalID(s *Store, id store.RecordID) index.ID {
	in, _ := s.resolve(&id)
	return in
}

// isPresent reports whether a record is in the store.
func isPresent(s *Store, id store.RecordID) bool {
	at := []bool{false}
	s.Present(id.Namespace, id.Shard, []connector.Key{id.Key}, at)
	return at[0]
}

// testRecord is a record whose content follows from its number.
type testRecord struct {
	ID     store.RecordID
	Parent connector.Key
	Proof  connector.Proof
	Bytes  int
	Seed   uint64 // part of what the content follows from
	Scope  connector.ScopeDigest
}

func keyOf(chain, block int) connector.Key {
	var k connector.Key
	binary.LittleEndian.PutUint64(k[:], uint64(chain)*0x9E3779B97F4A7C15+1)
	binary.LittleEndian.PutUint64(k[8:], uint64(block)*0xD6E8FEB86659FD93+7)
	return k
}

// chainOf returns n records, each the parent of the next.
func chainOf(ns connector.NamespaceDigest, chain, n int) []testRecord {
	out := make([]testRecord, n)
	for i := range out {
		r := &out[i]
		r.ID = store.RecordID{Namespace: ns, Key: keyOf(chain, i)}
		r.Bytes = testPayload
		if i > 0 {
			r.Parent = keyOf(chain, i-1)
		}
		binary.LittleEndian.PutUint64(r.Proof[:], uint64(chain)<<32|uint64(i))
	}
	return out
}

func keysOf(records []testRecord) []connector.Key {
	out := make([]connector.Key, len(records))
	for i := range records {
		out[i] = records[i].ID.Key
	}
	return out
}

func (r *testRecord) payload() []byte {
	b := store.AlignedBuffer(r.Bytes)
	seed := binary.LittleEndian.Uint64(r.ID.Key[:]) ^ binary.LittleEndian.Uint64(r.ID.Key[8:]) ^ uint64(r.ID.Shard)<<20 ^ r.Seed ^ uint64(r.ID.Namespace[0])
	g := rand.NewPCG(seed, 1)
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], g.Uint64())
	}
	return b
}

// writeAll writes records and waits for them. It returns the error of each.
func writeAll(t testing.TB, s *Store, records []testRecord) []error {
	t.Helper()
	errs := make([]error, len(records))
	var wg sync.WaitGroup
	for i := range records {
		r := &records[i]
		op := &store.WriteOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Scope: r.Scope, Payload: r.payload()}
		wg.Add(1)
		for {
			n, err := s.Write([]*store.WriteOp{op}, func(op *store.WriteOp) { errs[i] = op.Err; wg.Done() })
			if n == 1 {
				break
			}
			if !errors.Is(err, store.ErrBusy) {
				errs[i] = err
				wg.Done()
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	wg.Wait()
	return errs
}

func mustWrite(t testing.TB, s *Store, records []testRecord) {
	t.Helper()
	for i, err := range writeAll(t, s, records) {
		if err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
}

// readAll reads records and returns the error of each. A read without error whose bytes
// are wrong fails the test.
func readAll(t testing.TB, s *Store, records []testRecord) []error {
	t.Helper()
	ops := make([]*store.ReadOp, len(records))
	for i := range records {
		r := &records[i]
		ops[i] = &store.ReadOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Payload: store.AlignedBuffer(r.Bytes)}
	}
	calls := make(chan *store.ReadOp, len(ops)+1)
	s.Read(context.Background(), ops, func(op *store.ReadOp) { calls <- op })
	if len(calls) != len(ops) {
		t.Fatalf("done was called %d times for %d ops", len(calls), len(ops))
	}
	errs := make([]error, len(ops))
	for i, op := range ops {
		errs[i] = op.Err
		if op.Err == nil && !bytes.Equal(op.Payload, records[i].payload()) {
			t.Fatalf("record %d: wrong bytes without an error", i)
		}
	}
	return errs
}

func mustRead(t testing.TB, s *Store, records []testRecord) {
	t.Helper()
	for i, err := range readAll(t, s, records) {
		if err != nil {
			t.Fatalf("read %d: %v", i, err)
		}
	}
}

func lookup(s *Store, ns connector.NamespaceDigest, records []testRecord) int {
	n, lease := s.Lookup(ns, []connector.Shard{0}, keysOf(records), time.Minute)
	s.Release(lease)
	return n
}

var errTestFault = errors.New("test fault")

func TestRoundTrip(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 40)
	mustWrite(t, s, records)
	if n := lookup(s, ns, records); n != len(records) {
		t.Fatalf("lookup found %d of %d", n, len(records))
	}
	mustRead(t, s, records)
	if st := s.Stats(); st.Records != 40 || st.Reads != 40 || st.Writes != 40 || st.Recovered != recovery.RecoveredNew {
		t.Errorf("stats: %+v", st)
	}
}

func TestOddPayloadSizesRoundTrip(t *testing.T) {
	o := testOptions(t.TempDir())
	o.ChunkBytes = 16 << 10
	s := openTest(t, o)
	for i, size := range []int{1, 4095, 4096, 4097, 16<<10 - 1, 16 << 10, 100_001, 300 << 10} {
		ns := openNamespace(t, s, "size"+string(rune('a'+i)))
		records := chainOf(ns, i, 2)
		for k := range records {
			records[k].Bytes = size
		}
		mustWrite(t, s, records)
		mustRead(t, s, records)
	}
}

func TestNamespacesAndShardsAreSeparate(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	a, b := openNamespace(t, s, "a"), openNamespace(t, s, "b")
	if again := openNamespace(t, s, "a"); a == b || again != a {
		t.Fatalf("namespaces %d %d, again %d", a, b, again)
	}
	records := chainOf(a, 1, 4)
	mustWrite(t, s, records)
	if n := lookup(s, b, records); n != 0 {
		t.Errorf("other namespace finds %d", n)
	}
	both := []connector.Shard{0, 1}
	if n, _ := s.Lookup(a, both, keysOf(records), time.Second); n != 0 {
		t.Errorf("hit of %d blocks without their second shard", n)
	}
	second := chainOf(a, 1, 3)
	for i := range second {
		second[i].ID.Shard = 1
	}
	mustWrite(t, s, second)
	n, lease := s.Lookup(a, both, keysOf(records), time.Second)
	if n != 3 || lease == 0 {
		t.Errorf("two shards: %d blocks, lease %d", n, lease)
	}
	s.Release(lease)
	mustRead(t, s, second)
}

func TestEverythingIsThereAfterCleanStop(t *testing.T) {
	o := testOptions(t.TempDir())
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 100)
	mustWrite(t, s, records)
	for range 3 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openTest(t, o)
		if st := s.Stats(); st.Recovered != recovery.RecoveredSnapshot || st.Records != 100 {
			t.Fatalf("recovered from %s, %d records, warnings %v", st.Recovered, st.Records, st.Warnings)
		}
		if again := openNamespace(t, s, "a"); again != ns {
			t.Fatalf("namespace is %d, was %d", again, ns)
		}
		if n := lookup(s, ns, records); n != 100 {
			t.Fatalf("lookup found %d", n)
		}
		mustRead(t, s, records)
	}
}

func TestLossOfSnapshotIsMadeGoodByTheJournal(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"removed":   os.Remove,
		"truncated": func(p string) error { return os.Truncate(p, 8192) },
		"bit flip":  func(p string) error { return flipBit(p, 16484, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t.TempDir())
			s := openTest(t, o)
			ns := openNamespace(t, s, "a")
			records := chainOf(ns, 1, 50)
			mustWrite(t, s, records)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := spoil(filepath.Join(s.opts.Dir, recovery.SnapshotFile)); err != nil {
				t.Fatal(err)
			}
			s = openTest(t, o)
			if st := s.Stats(); st.Recovered != recovery.RecoveredJournal || st.Records != 50 {
				t.Fatalf("recovered from %s, %d records", st.Recovered, st.Records)
			}
			mustRead(t, s, records)
		})
	}
}

func TestLossOfJournalIsMadeGoodByHeaders(t *testing.T) {
	o := testOptions(t.TempDir())
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 50)
	mustWrite(t, s, records)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(o.Dir + "/" + recovery.JournalDir); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	awaitRebuild(t, s)
	if st := s.Stats(); st.Recovered != recovery.RecoveredHeaders || st.Records != 50 {
		t.Fatalf("recovered from %s, %d records", st.Recovered, st.Records)
	}
	ns = openNamespace(t, s, "a")
	for i := range records {
		records[i].ID.Namespace = ns
	}
	mustRead(t, s, records)
}

func flipBit(path string, at int64, bit uint) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		return errors.Join(err, f.Close())
	}
	b[0] ^= 1 << bit
	_, err = f.WriteAt(b[:], at)
	return errors.Join(err, f.Sync(), f.Close())
}

// damageTables flips a bit in each of the journal's tables.
func damageTables(t *testing.T, dir string) {
	t.Helper()
	for _, path := range journalFiles(t, dir, "*.sst") {
		info, err := os.Stat(path)
		if err == nil {
			err = flipBit(path, info.Size()/4, 3)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestWriteOnce(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 1)
	var many []testRecord
	for range 20 {
		many = append(many, records[0])
	}
	mustWrite(t, s, many) // concurrently
	mustWrite(t, s, records)
	if st := s.Stats(); st.Writes != 1 || st.WritesOfSame != 20 || st.Records != 1 {
		t.Errorf("%d writes, %d of the same, %d records", st.Writes, st.WritesOfSame, st.Records)
	}
}

func TestReadOfAbsentRecordIsAMiss(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	for _, err := range readAll(t, s, chainOf(ns, 1, 3)) {
		if !errors.Is(err, store.ErrGone) {
			t.Errorf("error %v", err)
		}
	}
}

func TestOtherPrefixIsAMissAndKeepsTheRecord(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 2)
	mustWrite(t, s, records)
	other := []testRecord{records[0], records[1]}
	other[0].Proof[3]++
	other[1].Parent[3]++
	for i, err := range readAll(t, s, other) {
		if !errors.Is(err, store.ErrMismatch) || !errors.Is(err, store.ErrGone) {
			t.Errorf("read %d: %v", i, err)
		}
	}
	mustRead(t, s, records)
}

func TestContractIsChecked(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 1)
	mustWrite(t, s, records)
	good := records[0].payload()
	short := store.AlignedBuffer(testPayload - 1)
	for name, c := range map[string]struct {
		id      store.RecordID
		payload []byte
	}{
		"wrong size":        {records[0].ID, short},
		"unaligned":         {records[0].ID, make([]byte, testPayload+8192)[1 : testPayload+1]},
		"no capacity":       {records[0].ID, good[: testPayload-1 : testPayload-1]},
		"empty":             {records[0].ID, good[:0]},
		"too large":         {records[0].ID, store.AlignedBuffer(store.MaxPayloadBytes + 1)},
		"unknown namespace": {store.RecordID{Namespace: connector.NamespaceDigest{7}, Key: records[0].ID.Key}, good},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := s.Write([]*store.WriteOp{{Record: store.Record{ID: c.id}, Payload: c.payload}}, func(*store.WriteOp) { t.Error("done was called") })
			if n != 0 || !errors.Is(err, store.ErrInvalid) {
				t.Errorf("write: %d, %v", n, err)
			}
			op := &store.ReadOp{Record: store.Record{ID: c.id}, Payload: c.payload}
			s.Read(context.Background(), []*store.ReadOp{op}, func(*store.ReadOp) {})
			if !errors.Is(op.Err, store.ErrInvalid) {
				t.Errorf("read: %v", op.Err)
			}
		})
	}
	if n, lease := s.Lookup(ns, []connector.Shard{0}, nil, time.Second); n != 0 || lease != 0 {
		t.Errorf("lookup of no keys: %d, %d", n, lease)
	}
	if n, _ := s.Lookup(connector.NamespaceDigest{99}, []connector.Shard{0}, keysOf(records), time.Second); n != 0 {
		t.Errorf("lookup in unknown namespace: %d", n)
	}
	s.Read(context.Background(), nil, nil)
}

func TestMillionKeyLookup(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 10)
	mustWrite(t, s, records)
	chain := make([]connector.Key, 1_000_000)
	copy(chain, keysOf(records))
	n, lease := s.Lookup(ns, []connector.Shard{0}, chain, time.Second)
	if n != 10 {
		t.Errorf("found %d", n)
	}
	s.Release(lease)
}

// leastAllocs is the least of several averages: what the store does in the background at
// times counts, too.
func leastAllocs(runs int, f func()) float64 {
	least := testing.AllocsPerRun(runs, f)
	for range 4 {
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}

func TestLookupDoesNotAllocate(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 100)
	mustWrite(t, s, records)
	keys, shards := keysOf(records), []connector.Shard{0}
	if n := leastAllocs(100, func() {
		_, lease := s.Lookup(ns, shards, keys, time.Second)
		s.Release(lease)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestReadDoesNotAllocatePerRecord(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 100)
	mustWrite(t, s, records)
	ops := make([]*store.ReadOp, len(records))
	for i := range records {
		r := &records[i]
		ops[i] = &store.ReadOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Payload: store.AlignedBuffer(r.Bytes)}
	}
	done := func(op *store.ReadOp) {
		if op.Err != nil {
			panic(op.Err)
		}
	}
	ctx := context.Background()
	if n := leastAllocs(20, func() { s.Read(ctx, ops, done) }); n >= float64(len(ops))/2 {
		t.Errorf("%v allocations for %d records", n, len(ops))
	}
}
