package tiertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
)

func (f *fixture) subscribe() store.Subscription {
	f.Helper()
	u, err := f.Subscribe(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = u.Close() })
	return u
}

// events reads n events or more, and checks that none is left out.
func (f *fixture) events(u store.Subscription, n int) []store.Event {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), wait.Limit)
	defer cancel()
	var list []store.Event
	for seq := u.Seq(); len(list) < n; {
		events, err := u.Next(ctx)
		if err != nil {
			f.Fatalf("after %d of %d events: %v", len(list), n, err)
		}
		for _, e := range events {
			if seq++; e.Seq != seq {
				f.Fatalf("event %d comes after %d", e.Seq, seq-1)
			}
		}
		if u.Seq() != seq {
			f.Errorf("Seq is %d after event %d", u.Seq(), seq)
		}
		list = append(list, events...)
	}
	return list
}

// rest reads the events up to now.
func (f *fixture) rest(u store.Subscription) []store.Event {
	f.Helper()
	mark := f.record(1<<20, int(u.Seq()))
	f.mustWrite(mark)
	var list []store.Event
	for {
		list = append(list, f.events(u, 1)...)
		if i := slices.IndexFunc(list, func(e store.Event) bool { return e.ID == mark.ID }); i >= 0 {
			return list
		}
	}
}

// resident is what a subscriber knows to be there, with each record's parent.
type resident map[store.RecordID]connector.Key

func (r resident) apply(f *fixture, events []store.Event) {
	f.Helper()
	for _, e := range events {
		parent, there := r[e.ID]
		switch {
		case e.Kind == store.EventStored && there && parent == e.Parent:
			f.Errorf("event %d: record %v is stored twice", e.Seq, e.ID.Key)
		case e.Kind == store.EventRemoved && !there:
			f.Errorf("event %d: record %v is removed, which was not there", e.Seq, e.ID.Key)
		case e.Kind == store.EventRemoved && e.Parent != connector.Key{}:
			f.Errorf("event %d: the removal of record %v has a parent", e.Seq, e.ID.Key)
		}
		if delete(r, e.ID); e.Kind == store.EventStored {
			r[e.ID] = e.Parent
		}
	}
}

func (f *fixture) snapshot(u store.Subscription) resident {
	f.Helper()
	r := resident{}
	if err := u.Snapshot(f.Context(), func(x store.Resident) error {
		if _, twice := r[x.ID]; twice {
			f.Errorf("the snapshot has record %v twice", x.ID.Key)
		}
		r[x.ID] = x.Parent
		return nil
	}); err != nil {
		f.Fatal(err)
	}
	return r
}

// follow applies events until the subscriber knows exactly those of the records written that are
// present: a tier may tell an event a little after it can be seen.
func (r resident) follow(f *fixture, u store.Subscription, written []store.Record) {
	f.Helper()
	wait.For(f, "events lead to what is present", func() bool {
		r.apply(f, f.rest(u))
		at := f.present(written...)
		for i, w := range written {
			if parent, known := r[w.ID]; known != at[i] || known && parent != w.Parent {
				return false
			}
		}
		return true
	})
}

func eventsFollowPresence(f *fixture) {
	u := f.subscribe()
	r := f.snapshot(u)
	if u.Seq() != 0 {
		f.Errorf("event %d was the last of a new tier, want none", u.Seq())
	}
	written := f.chain(1, 6)
	f.mustWrite(written...)
	f.Flip(written[3].ID)
	f.wantRead(store.ErrCorrupt, written[3])
	first := f.rest(u)
	if len(first) != 8 || first[6].Kind != store.EventRemoved || first[6].ID != written[3].ID {
		f.Errorf("%d events, the seventh %+v: want 6 records, one of them dropped, and the last", len(first), first[min(6, len(first)-1)])
	}
	r.apply(f, first)
	for c := range 2 * f.Capacity / 10 { // evicts
		chain := f.chain(100+c, 10)
		f.write(chain...)
		written = append(written, chain...)
		if c%8 == 7 {
			r.apply(f, f.rest(u))
		}
	}
	r.follow(f, u, written)
}

func snapshotAndEvents(f *fixture) {
	var mu sync.Mutex
	var written []store.Record
	var stop atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		for c := 0; !stop.Load() || c < 4; c++ {
			chain := f.chain(c%1000, 10)
			f.write(chain...)
			if c < 1000 {
				mu.Lock()
				written = append(written, chain...)
				mu.Unlock()
			}
		}
	})
	wait.For(f, "records are written", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(written) > 0
	})
	var views []resident
	var subscriptions []store.Subscription
	for range 4 {
		u := f.subscribe()
		views, subscriptions = append(views, f.snapshot(u)), append(subscriptions, u)
	}
	stop.Store(true)
	all.Wait()
	for i, r := range views {
		r.follow(f, subscriptions[i], written)
	}
	if err := subscriptions[0].Snapshot(f.Context(), func(store.Resident) error { f.Error("a snapshot is read twice"); return nil }); err != nil {
		f.Error(err)
	}
}

func subscribeAfter(f *fixture) {
	u := f.subscribe()
	f.mustWrite(f.chain(1, 5)...)
	list := f.events(u, 5)
	again, err := f.SubscribeAfter(f.Epoch(), list[1].Seq)
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	if err := again.Snapshot(f.Context(), func(store.Resident) error { f.Error("it has a snapshot"); return nil }); err != nil {
		f.Error(err)
	}
	if got := f.events(again, 3); !slices.Equal(got, list[2:]) {
		f.Errorf("events %+v, want %+v", got, list[2:])
	}
	if _, err := f.SubscribeAfter(f.Epoch()+1, list[1].Seq); !errors.Is(err, store.ErrLagged) {
		f.Errorf("of another epoch: %v", err)
	}
	ctx, cancel := f.timeout()
	defer cancel()
	if _, err := again.Next(ctx); !errors.Is(err, store.ErrTimeout) {
		f.Errorf("waiting until the context ends: %v", err)
	}
	if err := again.Close(); err != nil {
		f.Error(err)
	}
	if _, err := again.Next(f.Context()); !errors.Is(err, store.ErrClosed) {
		f.Errorf("after Close: %v", err)
	}
}

func lagged(f *fixture) {
	if f.KeptEvents == 0 {
		f.Skip("the tier keeps more events than a test can pass")
	}
	f.mustWrite(f.record(1, 0), f.record(1, 1))
	slow, reading := f.subscribe(), f.subscribe()
	from := slow.Seq()
	small := func(block int) {
		r := f.record(2, block)
		r.ID.Shard = 1
		ended := make(chan error, 1)
		op := &store.WriteOp{Record: r, Payload: payload(r.ID, 100)}
		if _, err := f.Write([]*store.WriteOp{op}, func(op *store.WriteOp) { ended <- op.Err }); err != nil {
			f.Fatal(err)
		}
		if err := <-ended; err != nil {
			f.Fatal(err)
		}
	}
	read := 0
	if err := reading.Snapshot(f.Context(), func(store.Resident) error {
		for i := 0; read == 0 && i <= f.KeptEvents; i++ {
			small(i)
		}
		read++
		return nil
	}); !errors.Is(err, store.ErrLagged) || read != 1 {
		f.Errorf("a snapshot goes on for %d records and ends with %v, though what follows it is not kept", read, err)
	}
	if _, err := slow.Next(f.Context()); !errors.Is(err, store.ErrLagged) {
		f.Errorf("Next: %v", err)
	}
	if _, err := f.SubscribeAfter(f.Epoch(), from); !errors.Is(err, store.ErrLagged) {
		f.Errorf("SubscribeAfter: %v", err)
	}
}

func closed(f *fixture) {
	f.mustWrite(f.chain(1, 4)...)
	f.lookup(1, 4, wait.Limit) // pins them to the end
	u := f.subscribe()
	var w writes
	var all sync.WaitGroup
	for g := range 2 {
		all.Go(f.readUntilClosed)
		all.Go(func() { w.run(f, 10+g) })
	}
	wait.For(f, "records are written", func() bool { return w.ended.Load() > 10 })
	if err := f.Tier.Close(); err != nil {
		f.Error(err)
	}
	w.over.Store(true)
	all.Wait()
	if w.ended.Load() != w.accepted.Load() {
		f.Errorf("%d writes were accepted, %d ended", w.accepted.Load(), w.ended.Load())
	}
	if err := f.Tier.Close(); err != nil {
		f.Errorf("closed again: %v", err)
	}
	f.wantRead(store.ErrClosed, f.chain(1, 4)...)
	if n, err := f.Write([]*store.WriteOp{{Record: f.record(1, 5), Payload: payload(f.record(1, 5).ID, PayloadBytes)}}, nil); n != 0 || !errors.Is(err, store.ErrClosed) {
		f.Errorf("Write: %d accepted, %v", n, err)
	}
	if err := f.Probe(f.Context()); !errors.Is(err, store.ErrClosed) && !errors.Is(err, store.ErrGone) {
		f.Errorf("Probe: %v", err)
	}
	if n, lease := f.lookup(1, 4, wait.Limit); n != 0 || lease != 0 {
		f.Errorf("Lookup finds %d blocks with lease %d", n, lease)
	}
	if _, err := f.Subscribe(f.Context()); !errors.Is(err, store.ErrClosed) {
		f.Errorf("Subscribe: %v", err)
	}
	if late, err := f.SubscribeAfter(f.Epoch(), u.Seq()); err == nil { // what was kept may be read still
		f.wantEnd(late)
		_ = late.Close()
	} else if !errors.Is(err, store.ErrClosed) {
		f.Errorf("SubscribeAfter: %v", err)
	}
	if _, err := f.OpenNamespace(manifests.Model("n")); !errors.Is(err, store.ErrClosed) {
		f.Errorf("OpenNamespace: %v", err)
	}
	f.wantEnd(u)
}

// wantEnd reads events until the subscription ends with its tier.
func (f *fixture) wantEnd(u store.Subscription) {
	f.Helper()
	_, err := u.Next(f.Context())
	for err == nil {
		_, err = u.Next(f.Context())
	}
	if !errors.Is(err, store.ErrClosed) {
		f.Errorf("Next: %v", err)
	}
}

// readUntilClosed reads the chain that is pinned.
func (f *fixture) readUntilClosed() {
	for {
		for _, op := range f.read(f.Context(), f.chain(1, 4)...) {
			if errors.Is(op.Err, store.ErrClosed) {
				return
			} else if op.Err != nil {
				f.Error(op.Err)
				return
			}
		}
	}
}

// writes counts writes; over is set once the tier is closed.
type writes struct {
	over            atomic.Bool
	accepted, ended atomic.Int64
}

// run writes a chain until the tier is closed, a few records at a time.
func (w *writes) run(f *fixture, chain int) {
	underWay := make(chan struct{}, 8)
	for i := 0; ; i++ {
		underWay <- struct{}{}
		r := f.record(chain, i)
		n, err := f.Write([]*store.WriteOp{{Record: r, Payload: payload(r.ID, PayloadBytes)}}, func(*store.WriteOp) {
			if w.over.Load() {
				f.Error("done is called after Close")
			}
			w.ended.Add(1)
			<-underWay
		})
		w.accepted.Add(int64(n))
		if n == 0 {
			<-underWay
		}
		if errors.Is(err, store.ErrClosed) {
			return
		} else if err != nil && !errors.Is(err, store.ErrBusy) {
			f.Error(err)
			return
		}
	}
}
