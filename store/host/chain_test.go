package host_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// Records are loaded, promoted and evicted at once in a chain whose first tier has room for a few of
// them. Records are damaged in both, the slow one hangs, and loads are given up. What arrives has its
// own bytes, and no memory and no lease is left behind.
func TestPromotionsBesideEvictionsDamageAndLoadsThatAreGivenUp(t *testing.T) {
	const records, inFast, loaders, rounds = 60, 12, 6, 40
	fast := tiertest.NewMemory(tiertest.Options{Name: "fast", MaxRecords: inFast})
	slow := tiertest.NewMemory(tiertest.Options{Name: "slow"})
	chain := store.NewChain(fast, slow)
	ns, err := chain.OpenNamespace(manifests.Model("m"))
	if err != nil {
		t.Fatal(err)
	}
	of := func(n int) store.Record {
		r := record(n)
		r.ID.Namespace = ns
		return r
	}
	write := func(n int) {
		var ended sync.WaitGroup
		ended.Add(1)
		op := &store.WriteOp{Record: of(n), Payload: store.AlignedBuffer(payloadBytes)}
		copy(op.Payload, content(op.ID))
		if _, err := slow.Write([]*store.WriteOp{op}, func(*store.WriteOp) { ended.Done() }); err != nil {
			t.Error(err)
			return
		}
		ended.Wait()
	}
	for n := range records {
		write(n)
	}
	a, err := host.New(host.Options{Bytes: 2 << 20, PopulateAheadBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	cache := host.NewCache(a, chain)
	var all sync.WaitGroup
	for loader := range loaders {
		account, err := a.Account(host.AccountOptions{Namespace: ns, LoadBytes: 5 * slotBytes, SaveBytes: 3 * slotBytes})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer account.Close()
			rng := seed.Random(t, loader)
			for range rounds {
				first := rng.IntN(records)
				n := 1 + rng.IntN(records-first)
				ctx, cancel := context.WithCancel(t.Context())
				switch rng.IntN(6) {
				case 0:
					time.AfterFunc(time.Duration(rng.IntN(300))*time.Microsecond, cancel)
				case 1:
					time.AfterFunc(time.Duration(rng.IntN(300))*time.Microsecond, slow.Stall())
				case 2:
					fast.Flip(of(first).ID)
				case 3:
					slow.Flip(of(first).ID)
				}
				_, lease := chain.Lookup(ns, []connector.Shard{0}, []connector.Key{of(first).ID.Key}, testWait)
				cache.Load(ctx, ctx, account, n, func(it *host.Item) error {
					it.Record, it.PayloadBytes = of(first+it.Index), payloadBytes
					return nil
				}, func(it *host.Item) {
					switch {
					case it.Err != nil:
						if ctx.Err() == nil && !errors.Is(it.Err, store.ErrGone) && !errors.Is(it.Err, store.ErrCorrupt) {
							t.Error(it.Err)
						}
						return
					case !bytes.Equal(it.Slot.Bytes(), content(it.ID)):
						t.Errorf("record %d has other bytes", first+it.Index)
					}
					it.Slot.Release()
				})
				chain.Release(lease)
				cancel()
				write(first) // again, if it was dropped
			}
		})
	}
	all.Wait()
	if err := chain.Close(); err != nil { // ends the reads that were given up
		t.Error(err)
	}
	st := a.Stats()
	if st.UsedBytes != 0 || st.Waiting != 0 || st.Accounts != 0 || fast.Leases() != 0 || slow.Leases() != 0 {
		t.Errorf("left behind: %+v, %d and %d leases", st, fast.Leases(), slow.Leases())
	}
	if st.Promoted == 0 || fast.Usage().Records > inFast {
		t.Errorf("%d records were promoted, the first tier has %d of at most %d", st.Promoted, fast.Usage().Records, inFast)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
