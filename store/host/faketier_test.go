package host_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

const (
	// testWait is what only a broken cache reaches.
	testWait     = time.Minute
	payloadBytes = 5000
	slotBytes    = 8192
)

// fakeTier keeps records in memory, and does with reads and writes what a test says.
type fakeTier struct {
	store.Tier // what the cache does not use

	mu    sync.Mutex
	has   map[store.RecordID]bool
	reads map[store.RecordID]int
	// asked are the numbers of records that calls of Read asked for.
	asked []int
	// written are the ops of Write, which ends them with writeErr, or refuses if refuse is set.
	written  []*store.WriteOp
	writeErr error
	refuse   bool
	// hold, if not nil, is what a write waits for.
	hold chan struct{}
	// before, if not nil, is called before each op is read, and returns how it ends.
	before func(context.Context, *store.ReadOp) error
	// promote is set on what is read.
	promote bool
	// queued is what the tier owes to others.
	queued atomic.Int64
}

func newFakeTier(records int) *fakeTier {
	f := &fakeTier{has: make(map[store.RecordID]bool), reads: make(map[store.RecordID]int)}
	for n := range records {
		f.has[record(n).ID] = true
	}
	return f
}

func (f *fakeTier) Name() string { return "fake" }

func (f *fakeTier) Speed() store.Speed { return store.Speed{QueuedBytes: f.queued.Load()} }

func (f *fakeTier) PayloadBytes(connector.NamespaceDigest, connector.Shard) int { return payloadBytes }

func (f *fakeTier) Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	f.mu.Lock()
	f.asked = append(f.asked, len(ops))
	f.mu.Unlock()
	for _, op := range ops {
		var err error
		if f.before != nil {
			err = f.before(ctx, op)
		}
		f.mu.Lock()
		if err == nil && !f.has[op.ID] {
			err = store.ErrGone
		}
		f.reads[op.ID]++
		f.mu.Unlock()
		if op.Err = err; err == nil {
			copy(op.Payload, content(op.ID))
			op.Promote, op.Scope = f.promote, connector.ScopeDigest{7}
		}
		done(op)
	}
}

func (f *fakeTier) Write(ops []*store.WriteOp, done func(*store.WriteOp)) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse {
		return 0, store.ErrBusy
	}
	f.written = append(f.written, ops...)
	for _, op := range ops {
		op.Err = f.writeErr
		go func() {
			if f.hold != nil {
				<-f.hold
			}
			done(op)
		}()
	}
	return len(ops), nil
}

func record(n int) store.Record {
	var r store.Record
	binary.LittleEndian.PutUint64(r.ID.Key[:], uint64(n)+1)
	r.Proof = connector.Proof{byte(n), byte(n >> 8), 1}
	if n > 0 {
		r.Parent = record(0).ID.Key
		binary.LittleEndian.PutUint64(r.Parent[:], uint64(n))
	}
	return r
}

// content is what a record's payload is.
func content(id store.RecordID) []byte { return bytes.Repeat(id.Key[:8], payloadBytes/8) }

// rig is a cache on a fake tier with one account.
type rig struct {
	t       *testing.T
	tier    *fakeTier
	cache   *host.Cache
	account *host.Account
}

// newRig makes a cache whose account may pin that many slots for loads, 0 for the default.
func newRig(t *testing.T, tier *fakeTier, slots int) *rig {
	t.Helper()
	a, err := host.New(host.Options{Bytes: 4 << 20, PopulateAheadBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil { // a slot that was not released
			t.Error(err)
		}
	})
	r := &rig{t: t, tier: tier, cache: host.NewCache(a, tier)}
	r.account = r.open(slots)
	return r
}

func (r *rig) open(slots int) *host.Account {
	r.t.Helper()
	c, err := r.cache.Account(host.AccountOptions{LoadBytes: int64(slots) * slotBytes})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// load loads records and returns how each ended, by index. What arrives is checked and released.
func (r *rig) load(ctx context.Context, account *host.Account, numbers ...int) []error {
	r.t.Helper()
	ends := make([]error, len(numbers))
	var mu sync.Mutex
	arrived := make([]int, len(numbers))
	r.cache.Load(ctx, ctx, account, len(numbers), wants(numbers), func(it *host.Item) {
		if it.Err == nil && !bytes.Equal(it.Slot.Bytes(), content(it.ID)) {
			r.t.Errorf("record %d has other bytes", numbers[it.Index])
		}
		if it.Err == nil {
			it.Slot.Release()
		}
		mu.Lock()
		defer mu.Unlock()
		arrived[it.Index]++
		ends[it.Index] = it.Err
	})
	for i, n := range arrived {
		if n != 1 {
			r.t.Errorf("record %d arrived %d times", numbers[i], n)
		}
	}
	return ends
}

func wants(numbers []int) func(*host.Item) error {
	return func(it *host.Item) error {
		it.Record, it.PayloadBytes = record(numbers[it.Index]), payloadBytes
		return nil
	}
}

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(testWait); !is(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}
