package host_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
	"github.com/kvconn/kvconn/store/host/handoff"
)

func numbers(from, to int) []int {
	var all []int
	for n := from; n < to; n++ {
		all = append(all, n)
	}
	return all
}

func TestRecordsAreReadOnceAndThenFound(t *testing.T) {
	r := newRig(t, newFakeTier(40), 0)
	for round := range 2 {
		for i, err := range r.load(t.Context(), r.account, numbers(0, 45)...) {
			if gone := i >= 40; gone != errors.Is(err, store.ErrGone) || !gone && err != nil {
				t.Errorf("round %d: record %d: %v", round, i, err)
			}
		}
	}
	for id, n := range r.tier.reads {
		if want := map[bool]int{true: 1, false: 2}[r.tier.has[id]]; n != want {
			t.Errorf("record %v was read %d times, want %d", id.Key, n, want)
		}
	}
	if most := slices.Max(r.tier.asked); most > 16 {
		t.Errorf("%d records were asked for at once", most)
	}
}

func TestWhatIsNotWantedIsNotRead(t *testing.T) {
	r := newRig(t, newFakeTier(3), 0)
	errNot := errors.New("not wanted")
	want := wants(numbers(0, 3))
	ends := make([]error, 3)
	r.cache.Load(t.Context(), t.Context(), r.account, 3, func(it *host.Item) error {
		if it.Index == 1 {
			return errNot
		}
		return want(it)
	}, func(it *host.Item) {
		ends[it.Index] = it.Err
		it.Slot.Release()
	})
	if ends[0] != nil || !errors.Is(ends[1], errNot) || ends[2] != nil || len(r.tier.reads) != 2 {
		t.Errorf("%v, %d reads", ends, len(r.tier.reads))
	}
}

func TestConcurrentLoadsReadARecordOnce(t *testing.T) {
	tier := newFakeTier(1)
	release := make(chan struct{})
	tier.before = func(context.Context, *store.ReadOp) error { <-release; return nil }
	r := newRig(t, tier, 0)
	var all sync.WaitGroup
	for range 8 {
		account := r.open(0)
		all.Go(func() {
			if ends := r.load(t.Context(), account, 0); ends[0] != nil {
				t.Error(ends[0])
			}
		})
	}
	until(t, "nobody waits for the other's read", func() bool { return r.cache.Stats().Joined == 7 })
	close(release)
	all.Wait()
	if n := tier.reads[record(0).ID]; n != 1 {
		t.Errorf("%d reads", n)
	}
}

// A load that waits for the read of another reads for itself if that fails.
func TestRecordIsReadAgainAfterAnothersReadFailed(t *testing.T) {
	tier := newFakeTier(1)
	fail := make(chan struct{})
	var reads atomic.Int32
	tier.before = func(context.Context, *store.ReadOp) error {
		if reads.Add(1) == 1 {
			<-fail
			return store.ErrIO
		}
		return nil
	}
	r := newRig(t, tier, 0)
	var first, second []error
	var all sync.WaitGroup
	all.Go(func() { first = r.load(t.Context(), r.account, 0) })
	until(t, "no read", func() bool { return reads.Load() == 1 })
	other := r.open(0)
	all.Go(func() { second = r.load(t.Context(), other, 0) })
	until(t, "the second does not wait", func() bool { return r.cache.Stats().Joined == 1 })
	close(fail)
	all.Wait()
	if !errors.Is(first[0], store.ErrIO) || second[0] != nil {
		t.Errorf("%v and %v", first[0], second[0])
	}
}

// Another's read ends, without its record, in the moment in which there is memory for ours.
func TestRecordIsReadThoughAnothersReadEndsAsMemoryComesFree(t *testing.T) {
	const rounds = 200
	r := newRig(t, newFakeTier(2*rounds), 1)
	others := r.open(0)
	for n := range rounds {
		var held, theirs host.Slot
		for s, c := range map[*host.Slot]*host.Account{&held: r.account, &theirs: others} {
			rec := record(2 * n)
			if s == &held {
				rec = record(2*n + 1)
			}
			if o, err := c.Acquire(t.Context(), s, rec, payloadBytes, false); o != host.Fill {
				t.Fatal(o, err)
			}
		}
		result := make(chan error, 1)
		go func() { result <- r.load(t.Context(), r.account, 2*n)[0] }()
		until(t, "the load does not wait", func() bool { return r.cache.Stats().Waiting > 0 })
		held.Release()
		theirs.Release()
		if err := <-result; err != nil {
			t.Fatal(err)
		}
	}
}

// A load of more than its account may pin goes on as its slots are released, and does not wait
// for memory while it holds a slot that it has not asked the tier for.
func TestLoadOfMoreThanFitsGoesOn(t *testing.T) {
	const slots = 3
	r := newRig(t, newFakeTier(100), slots)
	for i, err := range r.load(t.Context(), r.account, numbers(0, 100)...) {
		if err != nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
	if most := slices.Max(r.tier.asked); most > slots {
		t.Errorf("%d records were read at once, %d fit", most, slots)
	}
}

func TestWaitsEndWithTheirContext(t *testing.T) {
	tier := newFakeTier(5)
	release := make(chan struct{})
	tier.before = func(ctx context.Context, op *store.ReadOp) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return store.ErrTimeout
		}
	}
	r := newRig(t, tier, 2)
	other := r.open(0)
	ctx, cancel := context.WithCancelCause(t.Context())
	errOver := errors.New("over")
	var all sync.WaitGroup
	all.Go(func() { // two of them are read, the others have no memory
		for i, err := range r.load(ctx, r.account, numbers(0, 5)...) {
			if !errors.Is(err, errOver) && !errors.Is(err, store.ErrTimeout) {
				t.Errorf("record %d: %v", i, err)
			}
		}
	})
	until(t, "no wait for memory", func() bool { return r.cache.Stats().Waiting == 1 })
	all.Go(func() { // it waits for the first load's read
		if ends := r.load(ctx, other, 0); ends[0] == nil {
			t.Error("loaded")
		}
	})
	until(t, "no wait for the other's read", func() bool { return r.cache.Stats().Joined == 1 })
	cancel(errOver)
	all.Wait()
	if st := r.cache.Stats(); st.UsedBytes != 0 || st.Waiting != 0 {
		t.Errorf("%+v", st)
	}
	close(release)
	if ends := r.load(t.Context(), r.account, 4); ends[0] != nil {
		t.Error(ends[0])
	}
	if ends := r.load(ctx, r.account, 4); !errors.Is(ends[0], errOver) {
		t.Errorf("%v, want the cause", ends[0])
	}
}

// The kernel may still write to the memory of a read that was given up.
func TestMemoryOfAnUnsettledReadIsKept(t *testing.T) {
	tier := newFakeTier(1)
	var hung *store.ReadOp
	tier.before = func(_ context.Context, op *store.ReadOp) error {
		if hung == nil {
			hung = op
			op.SetSettled(false)
			return store.ErrTimeout
		}
		return nil
	}
	r := newRig(t, tier, 0)
	if ends := r.load(t.Context(), r.account, 0); !errors.Is(ends[0], store.ErrTimeout) {
		t.Fatal(ends[0])
	}
	if n := r.cache.Stats().UsedBytes; n != slotBytes {
		t.Errorf("%d bytes are held, want %d", n, slotBytes)
	}
	hung.SetSettled(true)
	hung.OnSettled(hung)
	if n := r.cache.Stats().UsedBytes; n != 0 {
		t.Errorf("%d bytes are held though the kernel is done", n)
	}
	if ends := r.load(t.Context(), r.account, 0); ends[0] != nil {
		t.Error(ends[0])
	}
}

// A load waits for the read of another, which is given up while the kernel has its memory. It reads for
// itself once that memory is free, and not before: the record has one reader.
func TestRecordIsReadAgainOnceAnUnsettledReadIsOver(t *testing.T) {
	tier := newFakeTier(1)
	giveUp, hung := make(chan struct{}), make(chan *store.ReadOp, 1)
	var reads atomic.Int32
	tier.before = func(_ context.Context, op *store.ReadOp) error {
		if reads.Add(1) > 1 {
			return nil
		}
		<-giveUp
		op.SetSettled(false)
		hung <- op
		return store.ErrTimeout
	}
	r := newRig(t, tier, 0)
	var all sync.WaitGroup
	all.Go(func() {
		if ends := r.load(t.Context(), r.account, 0); !errors.Is(ends[0], store.ErrTimeout) {
			t.Error(ends[0])
		}
	})
	until(t, "no read", func() bool { return reads.Load() == 1 })
	second := make(chan error, 1)
	other := r.open(0)
	go func() { second <- r.load(t.Context(), other, 0)[0] }()
	until(t, "the second does not wait", func() bool { return r.cache.Stats().Joined == 1 })
	close(giveUp)
	all.Wait()
	op := <-hung
	if n := reads.Load(); n != 1 {
		t.Errorf("%d reads of a record whose memory the kernel has", n)
	}
	clear(op.Payload) // the kernel
	op.SetSettled(true)
	op.OnSettled(op)
	if err := <-second; err != nil || reads.Load() != 2 {
		t.Errorf("%v after %d reads", err, reads.Load())
	}
	if n := r.cache.Stats().UsedBytes; n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}

// saves returns saves of records with their slots filled.
func saves(t *testing.T, r *rig, numbers ...int) []*host.Save {
	t.Helper()
	var all []*host.Save
	for _, n := range numbers {
		s := new(host.Save)
		if !r.account.ReserveSave(&s.Slot, payloadBytes) {
			t.Fatal("no memory")
		}
		s.Record = record(n)
		copy(s.Slot.Bytes(), content(s.ID))
		all = append(all, s)
	}
	return all
}

func TestWhatWasWrittenStaysInMemory(t *testing.T) {
	tier := newFakeTier(0)
	r := newRig(t, tier, 0)
	save := func(n int) (int, error) {
		var all sync.WaitGroup
		all.Add(1)
		taken, err := r.cache.Save(saves(t, r, n), func(s *host.Save) {
			if s.Slot.Bytes() != nil || len(s.Payload) != payloadBytes || !errors.Is(s.Err, tier.writeErr) {
				t.Errorf("%+v", s)
			}
			all.Done()
		})
		if taken == 0 {
			all.Done()
		}
		all.Wait()
		return taken, err
	}
	if taken, err := save(0); taken != 1 || err != nil {
		t.Fatal(taken, err)
	}
	tier.writeErr = store.ErrIO
	if taken, err := save(1); taken != 1 || err != nil {
		t.Fatal(taken, err)
	}
	tier.refuse = true
	if taken, err := save(2); taken != 0 || !errors.Is(err, store.ErrBusy) {
		t.Fatal(taken, err)
	}
	ends := r.load(t.Context(), r.account, 0, 1, 2)
	if ends[0] != nil || !errors.Is(ends[1], store.ErrGone) || !errors.Is(ends[2], store.ErrGone) {
		t.Errorf("%v, want the first alone", ends)
	}
	at := make([]bool, 2)
	r.cache.Present(connector.NamespaceDigest{}, 0, []connector.Key{record(0).ID.Key, record(1).ID.Key}, at)
	if !slices.Equal(at, []bool{true, false}) {
		t.Errorf("present %v", at)
	}
	if u := r.cache.Usage(); u.Records != 1 || u.UsedBytes != slotBytes || u.MaxBytes != 4<<20 || u.Hits != 1 {
		t.Errorf("%+v", u)
	}
}

// What a slower tier delivered is written to the first from where it was read to, with its scope.
func TestRecordsOfASlowerTierAreOfferedToTheFirst(t *testing.T) {
	tier := newFakeTier(3)
	tier.promote = true
	r := newRig(t, tier, 0)
	var slot *byte
	load := func(n int) {
		t.Helper()
		r.cache.Load(t.Context(), t.Context(), r.account, 1, wants([]int{n}), func(it *host.Item) {
			slot = &it.Slot.Bytes()[0]
			it.Slot.Release()
		})
	}
	load(0)
	if n := r.cache.Stats().Promoted; n != 1 {
		t.Fatalf("%d records were written when the load had ended", n)
	}
	if op := tier.written[0]; op.Record != record(0) || op.Scope != (connector.ScopeDigest{7}) || &op.Payload[0] != slot {
		t.Errorf("%+v", op)
	}
	load(0) // from memory: not offered again
	tier.refuse = true
	load(1)
	tier.refuse, tier.writeErr = false, store.ErrIO
	load(2)
	if st := r.cache.Stats(); st.Promoted != 1 || st.PromotionsRefused != 2 || st.UsedBytes != 0 || len(tier.written) != 2 {
		t.Errorf("%+v, %d writes", st, len(tier.written))
	}
}

// Loads do not wait for what is offered: it takes memory that saves may have, or is left out.
func TestNothingIsOfferedWithoutMemoryForSaves(t *testing.T) {
	tier := newFakeTier(1)
	tier.promote = true
	r := newRig(t, tier, 0)
	var held []*host.Slot
	for s := new(host.Slot); r.account.ReserveSave(s, payloadBytes); s = new(host.Slot) {
		held = append(held, s)
	}
	if ends := r.load(t.Context(), r.account, 0); ends[0] != nil {
		t.Error(ends[0])
	}
	for _, s := range held {
		s.Release()
	}
	if st := r.cache.Stats(); st.PromotionsRefused != 1 || len(tier.written) != 0 {
		t.Errorf("%+v", st)
	}
}

func TestLoadsAllocateByTheBatch(t *testing.T) {
	r := newRig(t, newFakeTier(64), 0)
	r.load(t.Context(), r.account, numbers(0, 64)...)
	want := wants(numbers(0, 64))
	ctx := context.Background()
	n := testing.AllocsPerRun(100, func() {
		r.cache.Load(ctx, ctx, r.account, 64, want, func(it *host.Item) { it.Slot.Release() })
	})
	if n > 10 {
		t.Errorf("%v allocations for four batches", n)
	}
}

// Loads of all lengths run at once, are given up, and share a tier that fails, hangs and
// answers late. Each record arrives once with its own bytes, is read by one at a time, and no
// memory is left behind.
func TestNoInterleavingLosesARecordOrASlot(t *testing.T) {
	const records = 60
	tier := newFakeTier(records)
	var mu sync.Mutex
	g := seed.Random(t, 0)
	n := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return g.IntN(n)
	}
	reading := make(map[store.RecordID]bool)
	var kernel sync.WaitGroup
	tier.before = func(_ context.Context, op *store.ReadOp) error {
		mu.Lock()
		if reading[op.ID] {
			t.Errorf("record %v is read twice at once", op.ID.Key)
		}
		reading[op.ID] = true
		what, late := g.IntN(10), time.Duration(g.IntN(200))*time.Microsecond
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			delete(reading, op.ID)
		}()
		switch what {
		case 0:
			return store.ErrIO
		case 1:
			op.SetSettled(false)
			payload := op.Payload
			mu.Lock()
			reading[op.ID] = false
			mu.Unlock()
			kernel.Go(func() {
				time.Sleep(late)
				payload[0]++ // nobody else has the memory: the race detector would see
				op.SetSettled(true)
				op.OnSettled(op)
			})
			return store.ErrTimeout
		case 2, 3, 4:
			time.Sleep(late)
		}
		return nil
	}
	r := newRig(t, tier, 0)
	var all sync.WaitGroup
	for range 6 {
		account := r.open(1 + n(20))
		rounds := rand.New(rand.NewPCG(uint64(n(1<<30)), 0))
		all.Go(func() {
			for range 60 {
				from := rounds.IntN(records)
				ctx, cancel := context.WithTimeout(t.Context(), testWait)
				if rounds.IntN(4) == 0 {
					time.AfterFunc(time.Duration(rounds.IntN(500))*time.Microsecond, cancel)
				}
				r.load(ctx, account, numbers(from, from+1+rounds.IntN(records-from))...)
				cancel()
			}
		})
	}
	all.Wait()
	kernel.Wait()
	if st := r.cache.Stats(); st.UsedBytes != 0 || st.Waiting != 0 {
		t.Errorf("%+v", st)
	}
}

// handOff asks for records [0, n) of a chain.
func handOff(ctx context.Context, h *handoff.Handoffs, n int) ([]connector.HandoffBlock, func()) {
	blocks := make([]connector.PlanBlock, n)
	for i := range blocks {
		blocks[i] = connector.PlanBlock{Key: record(i).ID.Key, Proof: record(i).Proof}
	}
	out, release := h.Handoff(ctx, connector.NamespaceDigest{}, 0, connector.Key{}, blocks)
	clear(blocks) // they are the caller's again
	return out, release
}

func TestHandoffPinsTheBlocksBeforeTheFirstGap(t *testing.T) {
	tier := newFakeTier(6)
	delete(tier.has, record(4).ID)
	r := newRig(t, tier, 0)
	h := handoff.New(r.cache, r.open(0))
	defer h.Close()
	got, release := handOff(t.Context(), h, 6)
	if len(got) != 4 {
		t.Fatalf("%d blocks, want the 4 before the one that is gone", len(got))
	}
	if n := r.cache.Stats().UsedBytes; n != 4*slotBytes {
		t.Errorf("%d bytes are pinned", n)
	}
	for i, b := range got {
		buf := make([]byte, payloadBytes)
		if _, err := r.cache.File().ReadAt(buf, int64(b.Offset)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buf, content(record(i).ID)) || xxh3.Hash(buf) != b.Sum {
			t.Errorf("block %d is not where it is said to be", i)
		}
	}
	release()
	release() // does nothing
	if n := r.cache.Stats().UsedBytes; n != 0 {
		t.Errorf("%d bytes are pinned after the release", n)
	}
	if got, _ := handOff(t.Context(), h, 0); got != nil {
		t.Errorf("%d blocks of none", len(got))
	}
}

// A slow write of what a slower tier delivered keeps nobody waiting but the end of the handoffs.
func TestHandoffDoesNotWaitForPromotions(t *testing.T) {
	tier := newFakeTier(2)
	tier.promote, tier.hold = true, make(chan struct{})
	r := newRig(t, tier, 0)
	h := handoff.New(r.cache, r.open(0))
	got, release := handOff(t.Context(), h, 2)
	if len(got) != 2 {
		t.Fatalf("%d blocks", len(got))
	}
	release()
	if n := r.cache.Stats().UsedBytes; n != 2*slotBytes {
		t.Errorf("%d bytes are pinned by the writes", n)
	}
	close(tier.hold)
	h.Close()
	if st := r.cache.Stats(); st.Promoted != 2 || st.UsedBytes != 0 {
		t.Errorf("%+v", st)
	}
}

// Nothing is handed off that the account has no room for.
func TestHandoffIsBounded(t *testing.T) {
	r := newRig(t, newFakeTier(6), 0)
	h := handoff.New(r.cache, r.open(2))
	defer h.Close()
	n := 0
	until(t, "not two blocks", func() bool { // what a call does not wait for is there for the next
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		got, release := handOff(ctx, h, 6)
		if n = len(got); release != nil {
			release()
		}
		return n >= 2
	})
	if n != 2 {
		t.Errorf("%d blocks, want 2", n)
	}
}

func TestReadsThatAHandoffLeavesBehindGoOn(t *testing.T) {
	tier := newFakeTier(2)
	wake := make(chan struct{})
	tier.before = func(context.Context, *store.ReadOp) error { <-wake; return nil }
	r := newRig(t, tier, 0)
	h := handoff.New(r.cache, r.open(0))
	defer h.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if got, release := handOff(ctx, h, 2); len(got) != 0 || release != nil {
		t.Fatalf("%d blocks of a tier that hangs", len(got))
	}
	close(wake)
	until(t, "the reads do not go on", func() bool {
		st := r.cache.Stats()
		return st.CleanBytes == 2*slotBytes && st.UsedBytes == 0
	})
	got, release := handOff(t.Context(), h, 2)
	if len(got) != 2 || tier.reads[record(0).ID] != 1 {
		t.Fatalf("%d blocks after %d reads", len(got), tier.reads[record(0).ID])
	}
	release()
}
