package disk

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
)

// spoil changes a byte of a record's payload on disk.
func spoil(t *testing.T, s *Store, r *testRecord) {
	t.Helper()
	found, ok := s.table.Get(internalID(s, r.ID), false)
	if !ok {
		t.Fatalf("record %v is not there", r.ID.Key)
	}
	g := s.space.At(found.Ref)
	page := store.AlignedBuffer(store.BufferAlign)
	at := g.Offset(g.Location(found.Ref).Slot) + store.BufferAlign
	if err := g.File.ReadVec(page, nil, at); err != nil {
		t.Fatal(err)
	}
	page[7] ^= 1
	if err := g.File.WriteVec(page, nil, at); err != nil {
		t.Fatal(err)
	}
}

// A disk that stalls kept a load of 15 damaged records waiting for 2 s, because each was reported
// only when the journal had its removal.
func TestReadOfADamagedRecordDoesNotWaitForTheJournal(t *testing.T) {
	g := seed.Random(t, 0)
	h := newHungJournal()
	o := memOptions(newMemDisk(), h.under(newJournalFS()))
	s := watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 20)
	mustWrite(t, s, records)
	u, err := s.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan map[store.RecordID]bool, 1)
	go func() { seen <- follow(t, u) }()
	bad := map[int]bool{3: true}
	for range 5 {
		bad[4+g.IntN(16)] = true
	}
	for i := range bad {
		spoil(t, s, &records[i])
	}

	h.on.Store(true)
	go func() { _ = s.journal.Flush() }()
	<-h.hung
	// The committer hangs as well, in the middle of another batch.
	other := make(chan []error, 1)
	go func() { other <- writeAll(t, s, chainOf(ns, 2, 1)) }()

	for i, err := range readAll(t, s, records) {
		if want := bad[i]; errors.Is(err, store.ErrCorrupt) != want || !want && err != nil {
			t.Errorf("record %d, damaged %t: %v", i, want, err)
		}
	}
	if n := lookup(s, ns, records); n != 3 {
		t.Errorf("%d blocks are found, want the 3 before the first damaged one", n)
	}
	for i, err := range readAll(t, s, records) {
		if want := bad[i]; errors.Is(err, store.ErrGone) != want || !want && err != nil {
			t.Errorf("record %d, damaged %t, read again: %v", i, want, err)
		}
	}
	// The engine has recomputed the blocks and saves them.
	again := make(chan []error, 1)
	go func() { again <- writeAll(t, s, records) }()
	close(h.release)
	for _, saved := range []chan []error{other, again} {
		for i, err := range <-saved {
			if err != nil {
				t.Errorf("write %d: %v", i, err)
			}
		}
	}
	mustRead(t, s, records)
	if n := lookup(s, ns, records); n != len(records) {
		t.Errorf("%d of %d blocks are found", n, len(records))
	}
	if n, st := s.table.Len(), s.Stats(); n != len(records)+1 || st.Corrupt != uint64(len(bad)) {
		t.Errorf("%d records, %d of them were corrupt; want %d and %d", n, st.Corrupt, len(records)+1, len(bad))
	}
	settle(t, s)
	mustBalance(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	have := <-seen
	for i := range records {
		if !have[records[i].ID] {
			t.Errorf("a subscriber does not know of record %d", i)
		}
	}
}

// Records that are damaged, looked up and saved again at random are found exactly if they are there.
func TestDamagedRecordsAreSavedAgainInAnyOrder(t *testing.T) {
	g := seed.Random(t, 0)
	o := memOptions(newMemDisk(), newJournalFS())
	s := watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 10)
	mustWrite(t, s, records)
	for range 200 {
		i := g.IntN(len(records))
		if !isPresent(s, records[i].ID) {
			mustWrite(t, s, records[i:i+1])
		}
		spoil(t, s, &records[i])
		if err := readAll(t, s, records[i:i+1])[0]; !errors.Is(err, store.ErrCorrupt) {
			t.Fatalf("read of a damaged record: %v", err)
		}
		if isPresent(s, records[i].ID) {
			t.Fatal("a damaged record is found")
		}
		if g.IntN(2) == 0 {
			mustWrite(t, s, records[i:i+1])
			mustRead(t, s, records[i:i+1])
		}
	}
	mustWrite(t, s, records)
	mustRead(t, s, records)
	settle(t, s)
	mustBalance(t, s)
}

// Reads that find damage, reads that are given up, saves, and evictions come in any order: what
// subscribers know is what is there, and nothing is found that is not the record.
func TestDamageIsFoundAmongEverythingElse(t *testing.T) {
	g := seed.Random(t, 0)
	o := memOptions(newMemDisk(), newJournalFS())
	o.MaxBytes = 8 << 20
	s := watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "m")
	u, err := s.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan map[store.RecordID]bool, 1)
	go func() { seen <- follow(t, u) }()
	chains := make([][]testRecord, 4)
	for i := range chains {
		chains[i] = chainOf(ns, i, 12)
	}
	var users sync.WaitGroup
	for user := range 6 {
		seeded := rand.New(rand.NewPCG(g.Uint64(), uint64(user)))
		users.Go(func() {
			for n := range 40 {
				records := chains[seeded.IntN(len(chains))]
				switch seeded.IntN(5) {
				case 0, 1:
					writeAll(t, s, records)
				case 2:
					writeAll(t, s, chainOf(ns, 100+user*1000+n, 12)) // which takes the room of others
				case 3:
					flip(s, records[seeded.IntN(len(records))].ID)
				default:
					for i, err := range readSome(s, records, seeded.IntN(3) == 0) {
						if err != nil && !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrCorrupt) && !errors.Is(err, context.Canceled) {
							t.Errorf("record %d: %v", i, err)
						}
					}
				}
			}
		})
	}
	users.Wait()
	settle(t, s)
	mustBalance(t, s)
	there := make(map[store.RecordID]bool)
	for _, g := range s.space.AllSegments() {
		for _, r := range s.table.Describe(g.Range(), nil) {
			there[s.recordID(r.ID)] = true
			if !isPresent(s, s.recordID(r.ID)) {
				t.Errorf("%v is in a slot and not found", r.ID)
			}
		}
	}
	if st := s.Stats(); st.ReadTimeouts != 0 || st.ReadErrors != 0 || st.Unreadable != 0 || st.Corrupt == 0 {
		t.Errorf("%d timeouts, %d errors, %d unreadable, %d corrupt", st.ReadTimeouts, st.ReadErrors, st.Unreadable, st.Corrupt)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if have := <-seen; !maps.Equal(have, there) {
		t.Errorf("a subscriber knows %d records, %d are there", len(have), len(there))
	}
}

// flip changes a byte of a record's payload on disk, if it is there.
func flip(s *Store, id store.RecordID) {
	found, ok := s.table.Get(internalID(s, id), true)
	if !ok {
		return
	}
	defer s.table.Unpin(found.Ref)
	g := s.space.At(found.Ref)
	page := store.AlignedBuffer(store.BufferAlign)
	at := g.Offset(g.Location(found.Ref).Slot) + store.BufferAlign
	if g.File.ReadVec(page, nil, at) == nil {
		page[7] ^= 1
		_ = g.File.WriteVec(page, nil, at)
	}
}

// readSome reads records, and gives that up at some moment if it is told to.
func readSome(s *Store, records []testRecord, giveUp bool) []error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if giveUp {
		go cancel()
	}
	ops := make([]*store.ReadOp, len(records))
	for i := range records {
		r := &records[i]
		ops[i] = &store.ReadOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Payload: store.AlignedBuffer(r.Bytes)}
	}
	s.Read(ctx, ops, func(*store.ReadOp) {})
	errs := make([]error, len(ops))
	for i, op := range ops {
		if errs[i] = op.Err; op.Err == nil && !bytes.Equal(op.Payload, records[i].payload()) {
			errs[i] = errors.New("wrong bytes without an error")
		}
	}
	return errs
}
