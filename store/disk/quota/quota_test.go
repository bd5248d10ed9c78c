package quota

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/indextest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

const (
	payload = 4096
	slot    = payload + 4096
)

// fixture is a table whose changes are made under a lock, as by a committer, and its quotas.
type fixture struct {
	t     *testing.T
	mu    sync.Mutex
	table *index.Table
	q     *Quotas
	free  []index.Ref
	seq   uint64
}

func newFixture(t *testing.T, slots uint32, limits Limits, patience time.Duration) *fixture {
	t.Helper()
	f := &fixture{t: t, table: index.New()}
	t.Cleanup(f.table.Close)
	if _, err := f.table.AddSlots(slots); err != nil {
		t.Fatal(err)
	}
	for ref := slots; ref > 0; ref-- {
		f.free = append(f.free, index.Ref(ref-1))
	}
	f.q = New(Options{Limits: limits, Table: f.table, Wait: patience, Evict: func(e *Eviction) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, r := range e.Take(f.table, nil) {
			f.free = append(f.free, r.Ref)
		}
	}})
	return f
}

func (f *fixture) run() {
	ctx, stop := context.WithCancel(f.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); f.q.Run(ctx) }()
	f.t.Cleanup(func() { stop(); <-ended })
}

func (f *fixture) limit(id tenants.ID) int64 { return f.q.limits.Load().Of(id) }

// insert adds a record of a tenant.
func (f *fixture) insert(id tenants.ID) index.Ref {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq++
	in := index.Insertion{Ref: f.free[len(f.free)-1], Seq: f.seq, Bytes: payload, Tenant: id}
	f.free = f.free[:len(f.free)-1]
	binary.LittleEndian.PutUint64(in.ID.Key[:], f.seq*0x9E3779B97F4A7C15)
	f.table.Insert([]index.Insertion{in})
	if t, _ := f.table.Tenants().Tenant(id); f.limit(id) > 0 && t.Bytes > f.limit(id) {
		f.t.Errorf("tenant %v has %d bytes", id, t.Bytes)
	}
	return in.Ref
}

// write is a write from its acceptance to its end, which ended is told.
func (f *fixture) write(id tenants.ID, ended func(error)) {
	var ticket Ticket
	given := make(chan struct{})
	through := func(err error) {
		<-given
		if err == nil {
			f.insert(id)
			f.q.Release(ticket)
		}
		ended(err)
	}
	t, now, err := f.q.Admit(id, slot, through)
	ticket = t
	close(given)
	switch {
	case err != nil:
		ended(err)
	case now:
		through(nil)
	}
}

// Many tenants write at one time: each in turn, none passes its quota, and nothing is kept of them afterwards but some victims.
func TestManyTenantsKeepTheirQuotas(t *testing.T) {
	const many, each = 600, 40
	f := newFixture(t, many*each, Limits{Tenants: map[tenants.ID]int64{indextest.Tenant(1): 5 * slot}, Default: 10 * slot}, time.Minute)
	f.run()
	var writers sync.WaitGroup
	for i := range many {
		writers.Add(each)
		go func() {
			for range each {
				f.write(indextest.Tenant(i), func(err error) {
					if err != nil {
						t.Error(err)
					}
					writers.Done()
				})
			}
		}()
	}
	writers.Wait()
	for i := range many {
		have, _ := f.table.Tenants().Tenant(indextest.Tenant(i))
		limit := f.limit(indextest.Tenant(i))
		if i == 0 && have.Records != each || i > 0 && (have.Bytes > limit || have.Bytes < limit-slot) {
			t.Errorf("tenant %d: %d records, a quota of %d", i, have.Records, limit/slot)
		}
	}
	f.q.mu.Lock()
	defer f.q.mu.Unlock()
	for id, a := range f.q.accounts {
		if a.reserved != 0 || len(a.queue) > 0 {
			t.Errorf("%v: %d bytes reserved, %d wait", id, a.reserved, len(a.queue))
		}
	}
	if st := f.q.Stats(); st.Waiting != 0 || st.Refused != 0 || st.Evicted == 0 {
		t.Errorf("%+v", st)
	}
}

// full is a tenant that has its quota, two records, which loads hold.
func full(t *testing.T, patience time.Duration) (f *fixture, id tenants.ID, held []index.Ref) {
	t.Helper()
	id = indextest.Tenant(1)
	f = newFixture(t, 100, Limits{Default: 2 * slot}, patience)
	held = []index.Ref{f.insert(id), f.insert(id)}
	for _, ref := range held {
		f.table.PinSlot(ref)
	}
	f.run()
	return f, id, held
}

func TestWritesDoNotWaitForLong(t *testing.T) {
	f, id, _ := full(t, 50*time.Millisecond)
	refused := make(chan error, 3)
	for range 3 {
		f.write(id, func(err error) { refused <- err })
	}
	for range 3 {
		if err := <-refused; !errors.Is(err, store.ErrBusy) {
			t.Errorf("%v", err)
		}
	}
	if st := f.q.Stats(); st.Waiting != 0 || st.Refused != 3 {
		t.Errorf("%+v", st)
	}
	if _, now, err := f.q.Admit(id, 3*slot, nil); now || !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("%v", err)
	}
}

func TestWritesWaitInTheirOrder(t *testing.T) {
	f, id, held := full(t, time.Minute)
	order := make(chan int, 3)
	for i := range 3 {
		f.write(id, func(err error) {
			if err != nil {
				t.Error(err)
			}
			order <- i
		})
	}
	f.table.Unpin(held...)
	if got := []int{<-order, <-order, <-order}; !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("order %v", got)
	}
}

// What a start finds is brought below the quota without a write.
func TestTooMuchAtTheStartGoes(t *testing.T) {
	f := newFixture(t, 1000, Limits{}, time.Minute)
	for i := range 300 {
		f.insert(indextest.Tenant(1 + i%2))
	}
	f.q.SetLimits(Limits{Tenants: map[tenants.ID]int64{indextest.Tenant(1): 20 * slot}})
	f.run()
	wait.For(t, "the tenant is within its quota", func() bool {
		have, _ := f.table.Tenants().Tenant(indextest.Tenant(1))
		return have.Records <= 20
	})
	if other, _ := f.table.Tenants().Tenant(indextest.Tenant(2)); other.Records != 150 {
		t.Errorf("%d records of another tenant", other.Records)
	}
}

func TestNoQuotaLetsEverythingThrough(t *testing.T) {
	f := newFixture(t, 10, Limits{Tenants: map[tenants.ID]int64{indextest.Tenant(1): slot}}, time.Minute)
	for _, id := range []tenants.ID{{}, tenants.Unknown, indextest.Tenant(2)} {
		ticket, now, err := f.q.Admit(id, 1<<40, nil)
		if !now || err != nil {
			t.Errorf("%v: %v", id, err)
		}
		f.q.Release(ticket)
	}
	if len(f.q.accounts) > 0 {
		t.Errorf("%d accounts", len(f.q.accounts))
	}
}

// Pinned records that are more than a quota are not looked for again and again.
func TestMoreThanAQuotaMayBePinned(t *testing.T) {
	id := indextest.Tenant(1)
	f := newFixture(t, 100, Limits{}, time.Hour)
	refs, seqs := []index.Ref{f.insert(id), f.insert(id), f.insert(id)}, []uint64{1, 2, 3}
	f.insert(id)
	f.table.Keep(refs, seqs, true, 1<<20)
	f.q.SetLimits(Limits{Default: 2 * slot})
	if progress, left := f.q.pass([]tenants.ID{id}); !progress || left {
		t.Errorf("a pass has left something to do, progress %v", progress)
	}
	if have, _ := f.table.Tenants().Tenant(id); have.Records != 3 || f.table.Kept().Records != 3 {
		t.Errorf("%+v", have)
	}
	if progress, left := f.q.pass([]tenants.ID{id}); progress || left {
		t.Error("another has found something to do")
	}
	f.table.Keep(refs, seqs, false, 1<<20)
	f.q.pass([]tenants.ID{id})
	if have, _ := f.table.Tenants().Tenant(id); have.Records > 2 || have.Pinned != 0 {
		t.Errorf("%+v", have)
	}
}

// Where pins leave no room a write is refused at once, one that waits too.
func TestPinsThatFillAQuotaRefuseWrites(t *testing.T) {
	id := indextest.Tenant(1)
	f := newFixture(t, 100, Limits{Default: 4 * slot}, time.Hour)
	refs := []index.Ref{f.insert(id), f.insert(id), f.insert(id), f.insert(id)}
	seqs := []uint64{1, 2, 3, 4}
	for _, ref := range refs {
		f.table.PinSlot(ref) // as loads do
	}
	f.run()
	waiting := make(chan error, 1)
	f.write(id, func(err error) { waiting <- err })
	if n := f.table.Keep(refs, seqs, true, 1<<20); n != 4 {
		t.Fatal(n)
	}
	if err := <-waiting; !errors.Is(err, store.ErrBusy) {
		t.Errorf("%v", err)
	}
	f.table.Unpin(refs...)
	if _, now, err := f.q.Admit(id, slot, nil); now || !errors.Is(err, store.ErrBusy) {
		t.Errorf("%v", err)
	}
	f.table.Keep(refs[:1], seqs[:1], false, 1<<20)
	ended := make(chan error, 1)
	f.write(id, func(err error) { ended <- err })
	if err := <-ended; err != nil {
		t.Error(err)
	}
	have, _ := f.table.Tenants().Tenant(id)
	if have.Records != 4 || have.Pinned != 3*slot || f.table.Kept().Records != 3 || f.q.Stats().Refused != 2 {
		t.Errorf("%+v, %+v, %+v", have, f.table.Kept(), f.q.Stats())
	}
}

// New limits count at once, for what there is and for what waits.
func TestLimitsChangeWhileWritesWait(t *testing.T) {
	one, other := indextest.Tenant(1), indextest.Tenant(2)
	f := newFixture(t, 1000, Limits{}, time.Hour)
	for i := range 300 {
		f.insert(indextest.Tenant(1 + i%2))
	}
	f.run()
	records := func(id tenants.ID) int64 {
		have, _ := f.table.Tenants().Tenant(id)
		return have.Records
	}
	f.q.SetLimits(Limits{Tenants: map[tenants.ID]int64{one: 20 * slot}})
	wait.For(t, "the tenant is within its quota", func() bool { return records(one) <= 20 })
	if n := records(other); n != 150 {
		t.Errorf("%d records of another tenant", n)
	}
	f.q.SetLimits(Limits{Tenants: map[tenants.ID]int64{one: 40 * slot, other: 120 * slot}})
	wait.For(t, "the other one too", func() bool { return records(other) <= 120 })

	// All that one has is held: its write waits until it has a larger quota, or none.
	f.q.SetLimits(Limits{Tenants: map[tenants.ID]int64{one: slot}})
	wait.For(t, "one record is left", func() bool { return records(one) <= 1 })
	for records(one) < 1 {
		f.insert(one)
	}
	for ref := range index.Ref(1000) {
		f.table.PinSlot(ref) // as loads do
	}
	for _, l := range []Limits{{Default: 1000 * slot}, {}} {
		ended := make(chan error, 1)
		f.q.SetLimits(Limits{Tenants: map[tenants.ID]int64{one: slot}})
		before := records(one)
		f.write(one, func(err error) { ended <- err })
		wait.For(t, "the write waits", func() bool { return f.q.Stats().Waiting == 1 })
		f.q.SetLimits(l)
		if err := <-ended; err != nil || records(one) != before+1 {
			t.Errorf("%+v: %v, %d records", l, err, records(one))
		}
	}
}

// A write that waits and has more than a new limit is refused, and nothing is evicted for it.
func TestAWriteThatWaitsIsRefusedByALowerLimit(t *testing.T) {
	id := indextest.Tenant(1)
	f := newFixture(t, 100, Limits{Default: 8 * slot}, time.Hour)
	for range 8 {
		f.insert(id)
	}
	ended := make(chan error, 1)
	if _, now, err := f.q.Admit(id, 7*slot, func(err error) { ended <- err }); now || err != nil {
		t.Fatal(now, err)
	}
	f.q.SetLimits(Limits{Default: 6 * slot})
	f.run()
	if err := <-ended; !errors.Is(err, store.ErrBusy) {
		t.Errorf("%v", err)
	}
	if have, _ := f.table.Tenants().Tenant(id); have.Records < 5 || have.Records > 6 {
		t.Errorf("%d records are left", have.Records)
	}
}
