package tiertest

import (
	"errors"
	"slices"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
)

func roundTrip(f *fixture) {
	before := f.Usage()
	chain := f.chain(1, 8)
	f.mustWrite(chain...)
	if at := f.present(chain...); slices.Contains(at, false) {
		f.Errorf("present %v", at)
	}
	f.wantRead(nil, chain...)
	u := f.Usage()
	if u.Records != before.Records+8 || u.Hits != before.Hits+8 || u.UsedBytes < 8*PayloadBytes || u.MaxBytes < u.UsedBytes || u.ReachableBytes > u.MaxBytes {
		f.Errorf("usage %+v after %+v, with 8 records more that were each read once", u, before)
	}
	if s := f.Speed(); s.QueuedBytes != 0 || s.BytesPerS < 0 || s.LatencyS < 0 {
		f.Errorf("speed %+v of an idle tier", s)
	}
	if f.Name() == "" {
		f.Error("the tier has no name")
	}
}

func misses(f *fixture) {
	f.mustWrite(f.record(1, 0), f.record(1, 1))
	f.wantRead(store.ErrGone, f.record(1, 2), f.record(2, 0))
	other := f.record(1, 1)
	other.Proof[5]++
	f.wantRead(store.ErrGone, other)
	other = f.record(1, 1)
	other.Parent[5]++
	f.wantRead(store.ErrGone, other)
	other = f.record(1, 1)
	other.ID.Shard = 1
	f.wantRead(store.ErrGone, other)
	f.wantRead(nil, f.record(1, 0), f.record(1, 1)) // records of another prefix stay
	at := []bool{true, false, false}
	f.Present(f.ns, 0, []connector.Key{key(9, 9), key(9, 8), key(1, 0)}, at)
	if !slices.Equal(at, []bool{true, false, true}) {
		f.Errorf("Present gives %v: it sets what is there and leaves the rest", at)
	}
}

func anyParent(f *fixture) {
	chain := f.chain(1, 3)
	f.mustWrite(chain...)
	free := slices.Clone(chain)
	for i := range free {
		free[i].Parent, free[i].AnyParent = connector.Key{9, byte(i)}, true
	}
	for i, op := range f.read(f.Context(), free...) {
		if op.Err != nil || op.Parent != chain[i].Parent {
			f.Errorf("record %d with any parent: %v, parent %v, want %v", i, op.Err, op.Parent, chain[i].Parent)
		}
	}
	for i := range free {
		free[i].AnyParent = false
	}
	f.wantRead(store.ErrGone, free...)
	other := f.record(1, 1)
	other.Proof[31]++
	other.AnyParent = true
	f.wantRead(store.ErrGone, other)
	missing := f.record(1, 7)
	missing.AnyParent = true
	f.wantRead(store.ErrGone, missing)
	f.wantRead(nil, chain...)
	f.Flip(chain[1].ID)
	damaged := chain[1]
	damaged.Parent, damaged.AnyParent = connector.Key{}, true
	f.wantRead(store.ErrCorrupt, damaged)
}

func corruption(f *fixture) {
	chain := f.chain(1, 4)
	f.mustWrite(chain...)
	f.Flip(chain[2].ID)
	hits := f.Usage().Hits
	f.wantRead(store.ErrCorrupt, chain[2])
	if n := f.Usage().Hits; n != hits {
		f.Error("a damaged record is a hit")
	}
	wait.For(f, "a damaged record is dropped", func() bool { return !f.present(chain[2])[0] })
	f.wantRead(store.ErrGone, chain[2])
	f.wantRead(nil, chain[0], chain[1], chain[3])
	f.mustWrite(chain[2])
	f.wantRead(nil, chain[2])
}

func endsOnce(f *fixture) {
	chain := f.chain(1, 40)
	f.mustWrite(chain[:30]...)
	f.Flip(chain[7].ID)
	for i, op := range f.read(f.Context(), chain...) {
		switch {
		case i == 7 && !errors.Is(op.Err, store.ErrCorrupt), i >= 30 && !errors.Is(op.Err, store.ErrGone), i != 7 && i < 30 && op.Err != nil:
			f.Errorf("record %d: %v", i, op.Err)
		case !op.Settled():
			f.Errorf("record %d is not settled", i)
		}
	}
	f.Read(f.Context(), nil, func(*store.ReadOp) { f.Error("an op of none") })
}

func contract(f *fixture) {
	f.mustWrite(f.record(1, 0))
	unknown := f.record(1, 0)
	unknown.ID.Namespace[0]++
	buffer := store.AlignedBuffer(PayloadBytes + store.BufferAlign)
	for what, op := range map[string]*store.ReadOp{
		"buffer of the wrong size": {Record: f.record(1, 0), Payload: store.AlignedBuffer(PayloadBytes - 1)},
		"buffer not aligned":       {Record: f.record(1, 0), Payload: buffer[1 : 1+PayloadBytes : 1+store.PayloadBufferSize(PayloadBytes)]},
		"capacity too small":       {Record: f.record(1, 0), Payload: buffer[:PayloadBytes:PayloadBytes]},
		"empty buffer":             {Record: f.record(1, 0)},
		"unknown namespace":        {Record: unknown, Payload: store.AlignedBuffer(PayloadBytes)},
	} {
		f.Read(f.Context(), []*store.ReadOp{op}, func(*store.ReadOp) {})
		if !errors.Is(op.Err, store.ErrInvalid) {
			f.Errorf("read, %s: %v", what, op.Err)
		}
	}
	good := &store.WriteOp{Record: f.record(1, 1), Payload: payload(f.record(1, 1).ID, PayloadBytes)}
	bad := &store.WriteOp{Record: f.record(1, 2), Payload: buffer[:PayloadBytes:PayloadBytes]}
	done := make(chan *store.WriteOp, 3)
	n, err := f.Write([]*store.WriteOp{good, bad, {Record: f.record(1, 3), Payload: payload(f.record(1, 3).ID, PayloadBytes)}},
		func(op *store.WriteOp) { done <- op })
	if n != 1 || !errors.Is(err, store.ErrInvalid) {
		f.Errorf("write of a good and a bad one: %d accepted, %v", n, err)
	}
	if op := <-done; op != good || op.Err != nil {
		f.Errorf("the accepted write ended with %v", op.Err)
	}
	if n, err := f.Write([]*store.WriteOp{{Record: unknown, Payload: payload(unknown.ID, PayloadBytes)}}, nil); n != 0 || !errors.Is(err, store.ErrInvalid) {
		f.Errorf("write into an unknown namespace: %d accepted, %v", n, err)
	}
	at := []bool{false}
	f.Present(unknown.ID.Namespace, 0, keys(1, 1), at)
	if err := f.HoldPayload(unknown.ID.Namespace, 0, PayloadBytes); !errors.Is(err, store.ErrInvalid) {
		f.Errorf("a size is held in an unknown namespace: %v", err)
	}
	if n := f.PayloadBytes(unknown.ID.Namespace, 0); n != 0 {
		f.Errorf("an unknown namespace has payloads of %d bytes", n)
	}
	if n, lease := f.Lookup(unknown.ID.Namespace, []connector.Shard{0}, keys(1, 1), wait.Limit); n != 0 || lease != 0 || at[0] {
		f.Error("an unknown namespace has records")
	}
}

func readDeadline(f *fixture) {
	chain := f.chain(1, 4)
	f.mustWrite(chain...)
	resume := f.Stall()
	ops := make([]*store.ReadOp, len(chain))
	var settled, reported sync.WaitGroup
	use := func(op *store.ReadOp) { // the buffer is the caller's again
		for i := range op.Payload {
			op.Payload[i] = 0xe5
		}
		settled.Done()
	}
	for i, r := range chain {
		settled.Add(1)
		reported.Add(1)
		ops[i] = &store.ReadOp{Record: r, Payload: store.AlignedBuffer(PayloadBytes), OnSettled: func(op *store.ReadOp) {
			if !op.Settled() {
				f.Error("OnSettled is called before the op is settled")
			}
			use(op)
		}}
	}
	polled := ops[3]
	polled.OnSettled = nil
	ctx, cancel := f.timeout()
	defer cancel()
	f.Read(ctx, ops, func(op *store.ReadOp) {
		if op != polled && op.Settled() {
			use(op) // OnSettled is not called then
		}
		reported.Done()
	})
	reported.Wait()
	for i, op := range ops {
		if !errors.Is(op.Err, store.ErrTimeout) {
			f.Errorf("record %d, which the device does not deliver: %v", i, op.Err)
		}
	}
	resume()
	wait.For(f, "an op without OnSettled is settled", polled.Settled)
	use(polled)
	settled.Wait()
	f.wantRead(nil, chain...) // nothing is held against the records
	if err := f.Tier.Close(); err != nil {
		f.Error(err)
	}
	for i, op := range ops {
		if slices.ContainsFunc(op.Payload, func(b byte) bool { return b != 0xe5 }) {
			f.Errorf("the buffer of record %d was written to once it was settled", i)
		}
	}
}

func writeOnce(f *fixture) {
	f.mustWrite(f.record(1, 0))
	used := f.Usage().Records
	u, err := f.Subscribe(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	f.mustWrite(f.record(1, 0), f.record(1, 0), f.record(1, 1), f.record(1, 1))
	if n := f.Usage().Records; n != used+1 {
		f.Errorf("%d records after %d and one new", n, used)
	}
	if events := f.events(u, 1); events[0].ID != f.record(1, 1).ID || events[0].Kind != store.EventStored {
		f.Errorf("events %+v, want one of the new record", events)
	}
}

func concurrent(f *fixture) {
	const goroutines, rounds, blocks = 4, 30, 12
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			rng := seed.Random(f.T, g)
			for range rounds {
				chain, n := rng.IntN(3), 1+rng.IntN(blocks)
				switch rng.IntN(3) {
				case 0:
					f.write(f.chain(chain, n)...)
				case 1:
					for _, op := range f.read(f.Context(), f.chain(chain, n)...) {
						if op.Err != nil && !errors.Is(op.Err, store.ErrGone) {
							f.Error(op.Err)
						}
					}
				default:
					n, lease := f.lookup(chain, n, wait.Limit)
					for _, op := range f.read(f.Context(), f.chain(chain, n)...) {
						if op.Err != nil {
							f.Errorf("a record that a lease pins: %v", op.Err)
						}
					}
					f.Release(lease)
				}
			}
		})
	}
	all.Wait()
}

func probe(f *fixture) {
	if err := f.Probe(f.Context()); !errors.Is(err, store.ErrGone) {
		f.Errorf("probe of an empty tier: %v", err)
	}
	f.mustWrite(f.record(1, 0))
	if err := f.Probe(f.Context()); err != nil {
		f.Error(err)
	}
	f.Flip(f.record(1, 0).ID)
	if err := f.Probe(f.Context()); !errors.Is(err, store.ErrCorrupt) {
		f.Errorf("probe of a damaged record: %v", err)
	}
}
