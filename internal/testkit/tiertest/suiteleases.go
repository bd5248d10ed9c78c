package tiertest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
)

// press writes more records than the tier can hold, as new chains.
func (f *fixture) press(from int) (next int) {
	for range 2 * f.Capacity / 10 {
		for _, err := range f.write(f.chain(from, 10)...) {
			if err != nil && !errors.Is(err, store.ErrBusy) {
				f.Fatal(err)
			}
		}
		from++
	}
	return from
}

func leasesPin(f *fixture) {
	f.mustWrite(f.chain(1, 6)...)
	n, lease := f.lookup(1, 8, wait.Limit)
	if n != 6 || lease == 0 {
		f.Fatalf("lookup finds %d blocks with lease %d, want 6", n, lease)
	}
	next := f.press(100)
	f.wantRead(nil, f.chain(1, 6)...)
	if !f.Renew(lease, wait.Limit) {
		f.Error("a lease that has not ended cannot be renewed")
	}
	next = f.press(next)
	f.wantRead(nil, f.chain(1, 6)...)
	f.Release(lease)
	if f.Renew(lease, wait.Limit) {
		f.Error("a lease that was released is renewed")
	}
	f.Release(lease)
	wait.For(f, "what no lease pins is evicted", func() bool {
		next = f.press(next)
		return !f.present(f.record(1, 5))[0]
	})
	if u := f.Usage(); u.Records >= int64(f.Capacity) || u.UsedBytes > u.MaxBytes {
		f.Errorf("usage %+v: more than the tier may hold", u)
	}
}

func leasesEnd(f *fixture) {
	f.mustWrite(f.chain(1, 2)...)
	if n, lease := f.lookup(2, 2, wait.Limit); n != 0 || lease != 0 {
		f.Errorf("lookup of what is not there: %d blocks, lease %d", n, lease)
	}
	if n, lease := f.Lookup(f.ns, []connector.Shard{0}, nil, wait.Limit); n != 0 || lease != 0 {
		f.Errorf("lookup of nothing: %d blocks, lease %d", n, lease)
	}
	f.Release(0)
	f.Release(1 << 60)
	if f.Renew(0, wait.Limit) || f.Renew(1<<60, wait.Limit) {
		f.Error("a lease that was never given is renewed")
	}
	_, lease := f.lookup(1, 2, time.Millisecond)
	wait.For(f, "a lease runs out", func() bool {
		time.Sleep(2 * time.Millisecond)
		return !f.Renew(lease, time.Millisecond)
	})
	f.Release(lease)
}

// leaseRenewed renews a short lease: it pins for as long as it was renewed for.
func leaseRenewed(f *fixture) {
	f.mustWrite(f.chain(1, 4)...)
	var lease store.LeaseID
	wait.For(f, "a short lease is renewed", func() bool {
		f.Release(lease)
		_, lease = f.lookup(1, 4, time.Millisecond)
		return f.Renew(lease, wait.Limit)
	})
	next := 100
	for began := time.Now(); time.Since(began) < 10*time.Millisecond; {
		next = f.press(next)
	}
	f.wantRead(nil, f.chain(1, 4)...)
	f.Release(lease)
}

// lookupsAreUses writes more than the tier can hold. A chain that is looked up again and again stays,
// one whose presence is asked for goes.
func lookupsAreUses(f *fixture) {
	f.mustWrite(f.chain(1, 4)...)
	f.mustWrite(f.chain(2, 4)...)
	next := 100
	wait.For(f, "what is only asked for is evicted", func() bool {
		f.write(f.chain(next, 10)...)
		next++
		n, lease := f.lookup(1, 4, wait.Limit)
		if n < 4 {
			f.Fatalf("%d of 4 blocks are there that are looked up again and again", n)
		}
		f.Release(lease)
		return slices.Contains(f.present(f.chain(2, 4)...), false)
	})
}

// touchesAreUses writes more than the tier can hold. Records that are touched stay, whatever else
// is named with them; once nothing touches them they go.
func touchesAreUses(f *fixture) {
	f.mustWrite(f.chain(1, 4)...)
	f.mustWrite(f.chain(2, 4)...)
	f.Touch(connector.NamespaceDigest{0xff}, 0, keys(1, 4))
	f.Touch(f.ns, 0, nil)
	named := append(keys(3, 2), keys(1, 4)[1:]...) // none of chain 3 is there
	f.Touch(f.ns, 9, named)                        // nor any of shard 9
	next := 100
	wait.For(f, "what is not touched is evicted", func() bool {
		f.write(f.chain(next, 10)...)
		next++
		f.Touch(f.ns, 0, named)
		if slices.Contains(f.present(f.chain(1, 4)[1:]...), false) {
			f.Fatal("records are evicted that are touched again and again")
		}
		return slices.Contains(f.present(f.chain(2, 4)...), false)
	})
	wait.For(f, "what was touched is evicted", func() bool {
		next = f.press(next)
		return slices.Contains(f.present(f.chain(1, 4)[1:]...), false)
	})
}

func lookupShards(f *fixture) {
	for block := range 4 {
		for shard := range connector.Shard(3) {
			r := f.record(1, block)
			r.ID.Shard = shard
			if block < 3 || shard < 2 { // shard 2 lacks the last block
				f.mustWrite(r)
			}
		}
	}
	f.mustWrite(f.record(1, 5)) // after a gap
	if n, lease := f.lookup(1, 6, wait.Limit); n != 4 {
		f.Errorf("lookup finds %d blocks, 4 are before the gap", n)
	} else {
		f.Release(lease)
	}
	for shards, want := range map[[2]connector.Shard]int{{0, 1}: 4, {0, 2}: 3, {2, 1}: 3, {0, 3}: 0} {
		n, lease := f.Lookup(f.ns, shards[:], keys(1, 4), wait.Limit)
		if n != want {
			f.Errorf("shards %v have %d blocks, want %d", shards, n, want)
		}
		f.Release(lease)
	}
}

func namespaces(f *fixture) {
	f.mustWrite(f.chain(1, 2)...)
	first := f.ns
	f.ns = f.open("other")
	f.wantRead(store.ErrGone, f.chain(1, 2)...)
	if n, _ := f.lookup(1, 2, wait.Limit); n != 0 {
		f.Error("records of another namespace are found")
	}
	f.mustWrite(f.record(1, 0))
	f.CloseNamespace(f.ns)
	second := f.ns
	f.ns = first
	f.wantRead(nil, f.chain(1, 2)...)
	f.open("m")
	f.CloseNamespace(first)
	f.wantRead(nil, f.chain(1, 2)...) // it is open once still
	f.CloseNamespace(first)
	f.open("other")
	f.ns = second
	f.wantRead(nil, f.record(1, 0))
	f.wantRead(store.ErrGone, f.record(1, 1))
}

func payloadSizes(f *fixture) {
	if n := f.PayloadBytes(f.ns, 0); n != 0 {
		f.Errorf("payloads of %d bytes before any record", n)
	}
	f.mustWrite(f.record(1, 0))
	if n := f.PayloadBytes(f.ns, 0); n != PayloadBytes {
		f.Errorf("payloads of %d bytes, want %d", n, PayloadBytes)
	}
	r := f.record(1, 1)
	var n int
	var err error
	if f.AnySize {
		f.otherSize()
	} else {
		n, err = f.Write([]*store.WriteOp{{Record: r, Payload: payload(r.ID, 100)}}, nil)
		if n != 0 {
			f.Error("a payload of another size is accepted")
		}
		f.wantSizeError(err, 100, PayloadBytes, false)
		f.wantSizeError(f.HoldPayload(f.ns, 0, 100), 100, PayloadBytes, false)
	}
	for range 2 {
		if err := f.HoldPayload(f.ns, 1, 100); err != nil {
			f.Error(err)
		}
	}
	f.ReleasePayload(f.ns, 1)
	f.wantSizeError(f.HoldPayload(f.ns, 1, 200), 200, 100, true)
	r.ID.Shard = 1
	n, err = f.Write([]*store.WriteOp{{Record: r, Payload: payload(r.ID, 200)}}, nil)
	if n != 0 {
		f.Error("a payload of another size than an engine holds is accepted")
	}
	f.wantSizeError(err, 200, 100, true)
	f.ReleasePayload(f.ns, 1)
	if err := f.HoldPayload(f.ns, 1, 200); err != nil {
		f.Errorf("a size that nothing holds any more: %v", err)
	}
	f.ReleasePayload(f.ns, 1)
}

// otherSize holds another size than that of the one record there is: it is found again afterwards.
func (f *fixture) otherSize() {
	if err := f.HoldPayload(f.ns, 0, 100); err != nil {
		f.Fatalf("a size that no record has is refused: %v", err)
	}
	if f.PayloadBytes(f.ns, 0) != 100 || f.present(f.record(1, 0))[0] {
		f.Error("a record is offered of another size than is held")
	}
	if n, _ := f.lookup(1, 1, wait.Limit); n != 0 {
		f.Error("a record is found of another size than is held")
	}
	f.ReleasePayload(f.ns, 0)
	f.wantRead(nil, f.record(1, 0))
}

func (f *fixture) wantSizeError(err error, bytes, stored int, held bool) {
	f.Helper()
	var e *store.PayloadSizeError
	if !errors.As(err, &e) || !errors.Is(err, store.ErrInvalid) {
		f.Errorf("%v is no payload size error", err)
		return
	}
	if got, want := fmt.Sprint(e.Bytes, e.Stored, e.Held), fmt.Sprint(bytes, stored, held); got != want {
		f.Errorf("payload size error %v, want %v", got, want)
	}
}
