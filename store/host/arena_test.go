package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// testUnit holds 16 of the smallest slots.
const testUnit = 64 << 10

func newArena(t testing.TB, units int) *Arena {
	t.Helper()
	a, err := New(Options{Bytes: int64(units) * testUnit, unitBytes: testUnit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func newAccount(t testing.TB, a *Arena, o AccountOptions) *Account {
	t.Helper()
	c, err := a.Account(o)
	if err != nil {
		t.Fatal(err)
	}
	c.SetActive(true)
	return c
}

func record(n int) store.Record {
	var r store.Record
	binary.LittleEndian.PutUint64(r.ID.Key[:], uint64(n))
	r.Parent, r.Proof = connector.Key{1}, connector.Proof{byte(n), 2}
	return r
}

// lookup pins the slot of a record if a verified one is there. It counts no miss.
func (c *Account) lookup(s *Slot, rec store.Record, payloadBytes int) bool {
	a := c.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.begin(s, payloadBytes, false) != nil {
		return false
	}
	s.rec = c.record(&rec)
	s.hash = a.index.hash(&s.rec.slotKey)
	id := a.find(s.hash, &s.rec.slotKey)
	if id == 0 || a.slot(id).state != slotClean || !a.serves(id, s) || !c.allows(s.class, false) {
		return false
	}
	a.hit(s, id)
	return true
}

// usage is what an account holds and may hold at the moment, in bytes.
type usage struct{ LoadBytes, LoadLimitBytes, SaveBytes, SaveLimitBytes int64 }

func (c *Account) usage() usage {
	c.arena.mu.Lock()
	defer c.arena.mu.Unlock()
	share := c.share()
	return usage{c.loadBytes, min(c.opts.LoadBytes, share), c.saveBytes, min(c.opts.SaveBytes, share)}
}

// acquire does so without waiting.
func acquire(t testing.TB, c *Account, s *Slot, r store.Record, payload int, want Outcome) {
	t.Helper()
	got, err := c.Acquire(context.Background(), s, r, payload, false)
	if got != want || (err == nil) == (want == Full) {
		t.Fatalf("Acquire = %v, %v; want %v", got, err, want)
	}
}

func TestPublishedRecordIsFoundWithItsBytesByEqualProofAlone(t *testing.T) {
	a := newArena(t, 4)
	c := newAccount(t, a, AccountOptions{})
	var s, other Slot
	acquire(t, c, &s, record(1), 5000, Fill)
	if len(s.Bytes()) != 5000 || cap(s.Bytes()) != 8192 || s.Offset()%store.BufferAlign != 0 {
		t.Fatalf("%d bytes of %d at %d", len(s.Bytes()), cap(s.Bytes()), s.Offset())
	}
	copy(s.Bytes(), bytes.Repeat([]byte("kv"), 2500))
	if !s.Publish(record(1)) {
		t.Fatal("not published")
	}
	s.Release()
	wrongProof, wrongParent := record(1), record(1)
	wrongProof.Proof[31]++
	wrongParent.Parent[0]++
	for _, r := range []store.Record{wrongProof, wrongParent, record(2)} {
		if c.lookup(&other, r, 5000) {
			t.Errorf("%v is found", r)
		}
	}
	if c.lookup(&other, record(1), 5001) {
		t.Error("found with another length")
	}
	acquire(t, c, &other, wrongProof, 5000, Fill)
	if other.Publish(wrongProof) {
		t.Error("a record of another prefix took the place of the first")
	}
	other.Release()
	if !c.lookup(&s, record(1), 5000) || !bytes.Equal(s.Bytes()[:4], []byte("kvkv")) {
		t.Error("the record is not found with its bytes")
	}
	s.Release()
	if st := a.Stats(); st.UsedBytes != 0 || st.Hits != 1 || st.Mismatched != 1 {
		t.Errorf("%+v", st)
	}
}

func TestDescriptorShowsTheBytesAndCannotBeWritten(t *testing.T) {
	a := newArena(t, 2)
	c := newAccount(t, a, AccountOptions{})
	var s Slot
	if !c.ReserveSave(&s, 4096) {
		t.Fatal("no slot")
	}
	defer s.Release()
	copy(s.Bytes(), "engine")
	fd, size := int(a.File().Fd()), len(a.Memory())
	m, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if got := m[s.Offset() : s.Offset()+6]; string(got) != "engine" {
		t.Errorf("the other mapping shows %q", got)
	}
	_ = unix.Munmap(m)
	if _, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("the descriptor can be mapped writable")
	}
	if _, err := a.File().WriteAt([]byte{1}, 0); err == nil {
		t.Error("the descriptor can be written")
	}
	if err := a.File().Truncate(0); err == nil {
		t.Error("the descriptor can be truncated")
	}
}

func TestMemoryGoesFromOneSizeToAnother(t *testing.T) {
	a := newArena(t, 8)
	c := newAccount(t, a, AccountOptions{LoadBytes: 8 * testUnit, SaveBytes: 8 * testUnit})
	var s Slot
	for round, payload := range []int{4096, 3 * testUnit, 5000, 8 * testUnit, 40 << 10, testUnit} {
		for i := range 200 {
			acquire(t, c, &s, record(round*1000+i), payload, Fill)
			if !s.Publish(record(round*1000 + i)) {
				t.Fatal("not published")
			}
			s.Release()
		}
		if !c.lookup(&s, record(round*1000+199), payload) {
			t.Fatalf("payload %d: the newest record is gone", payload)
		}
		s.Release()
	}
	if _, err := c.Acquire(t.Context(), &s, record(1), 9*testUnit, true); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
}

func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	a := newArena(t, 2) // 32 slots
	c := newAccount(t, a, AccountOptions{})
	var s Slot
	put := func(n int) {
		acquire(t, c, &s, record(n), 4096, Fill)
		s.Publish(record(n))
		s.Release()
	}
	for n := range 32 {
		put(n)
	}
	for n := range 16 { // used again
		acquire(t, c, &s, record(n), 4096, Hit)
		s.Release()
	}
	for n := range 16 {
		put(100 + n)
	}
	for n := range 32 {
		if found := c.lookup(&s, record(n), 4096); found != (n < 16) {
			t.Errorf("record %d found: %v", n, found)
		}
		s.Release()
	}
}

func TestTwoWhoWantARecordReadItOnce(t *testing.T) {
	a := newArena(t, 4)
	c, d := newAccount(t, a, AccountOptions{}), newAccount(t, a, AccountOptions{})
	var s, w1, w2 Slot
	acquire(t, c, &s, record(1), 4096, Fill)
	at := make([]bool, 1)
	if a.Present(record(1).ID.Namespace, 0, []connector.Key{record(1).ID.Key}, at); at[0] {
		t.Error("a record is there while it is read")
	}
	acquire(t, c, &w1, record(1), 4096, Pending)
	acquire(t, d, &w2, record(1), 4096, Pending)
	s.Bytes()[0] = 42
	s.Publish(record(1))
	s.Release()
	for _, w := range []*Slot{&w1, &w2} {
		if err := w.Wait(t.Context()); err != nil || w.Bytes()[0] != 42 {
			t.Fatal(err)
		}
		w.Release()
	}
	acquire(t, c, &s, record(2), 4096, Fill)
	acquire(t, d, &w1, record(2), 4096, Pending)
	acquire(t, d, &w2, record(2), 4096, Pending)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w2.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want canceled", err)
	}
	s.Release() // the read failed
	if err := w1.Wait(t.Context()); !errors.Is(err, ErrFillFailed) {
		t.Errorf("%v, want ErrFillFailed", err)
	}
	acquire(t, d, &w1, record(2), 4096, Fill)
	w1.Release()
	if u := d.usage(); u.LoadBytes != 0 {
		t.Errorf("%+v is left", u)
	}
}

func TestCloseRefusesWhileTheKernelMayWrite(t *testing.T) {
	a := newArena(t, 2)
	c := newAccount(t, a, AccountOptions{})
	var s Slot
	c.ReserveSave(&s, 4096)
	c.Close()
	if err := a.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("%v, want ErrBusy", err)
	}
	s.Release()
	s.Release() // harmless
	if st := a.Stats(); st.Accounts != 0 || st.UsedBytes != 0 {
		t.Errorf("%+v", st)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if c.ReserveSave(&s, 4096) {
		t.Error("a closed account gives memory out")
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	a := newArena(t, 4)
	c := newAccount(t, a, AccountOptions{})
	var s Slot
	ctx := context.Background()
	n := 0
	for name, run := range map[string]func(){
		"acquire, publish and release": func() {
			n++
			r := record(n % 500)
			if o, _ := c.Acquire(ctx, &s, r, 4096, false); o == Fill {
				s.Publish(r)
			}
			s.Release()
		},
		"lookup": func() { c.lookup(&s, record(n), 4096); s.Release() },
		"save":   func() { c.ReserveSave(&s, 4096); s.Release() },
	} {
		for range 2000 {
			run()
		}
		if got := testing.AllocsPerRun(1000, run); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

func TestPopulationRunsAheadOfUse(t *testing.T) {
	a, err := New(Options{Bytes: 8 << 20, PopulateAheadBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for a.Stats().PopulatedBytes < 4<<20 {
		runtime.Gosched()
	}
	c := newAccount(t, a, AccountOptions{})
	var s Slot
	c.ReserveSave(&s, 1<<20)
	for a.Stats().PopulatedBytes < 6<<20 {
		runtime.Gosched()
	}
	t.Logf("huge pages: %d of %d bytes", a.Stats().HugeBytes, a.Stats().PopulatedBytes)
	s.Release()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
