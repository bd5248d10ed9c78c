package tiertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
)

// Subject is an empty tier to be tested.
type Subject struct {
	store.Tier
	// Capacity is a number of records of [PayloadBytes] that the tier never holds.
	Capacity int
	// Flip flips a bit of the stored payload of a record.
	Flip func(id store.RecordID)
	// Stall makes the device answer no read until resume is called.
	Stall func() (resume func())
	// KeptEvents is the number of events that the tier keeps for subscribers at most, where that
	// is few enough to be passed; 0 elsewhere.
	KeptEvents int
	// AnySize says that the tier keeps records of several sizes of a shard, and finds those of the size that
	// is held.
	AnySize bool
}

// PayloadBytes is the size of the payloads of the suite.
const PayloadBytes = 40_000

// Run runs the suite. open returns a new tier each time; the suite closes it.
func Run(t *testing.T, open func(t *testing.T) *Subject) {
	for name, test := range map[string]func(*fixture){
		"records come back as written":             roundTrip,
		"what is not there is a miss":              misses,
		"the proof proves a record of any parent":  anyParent,
		"damaged records are dropped":              corruption,
		"each op ends once":                        endsOnce,
		"what breaks the contract is refused":      contract,
		"reads end with their context":             readDeadline,
		"a record is kept once":                    writeOnce,
		"concurrent calls":                         concurrent,
		"leases pin":                               leasesPin,
		"leases end":                               leasesEnd,
		"a renewed lease lasts":                    leaseRenewed,
		"look-ups are uses":                        lookupsAreUses,
		"a touch is a use and no pin":              touchesAreUses,
		"lookup wants all shards":                  lookupShards,
		"events follow presence":                   eventsFollowPresence,
		"a snapshot and its events are the whole":  snapshotAndEvents,
		"subscribers go on where they were":        subscribeAfter,
		"a subscriber that is too slow is told":    lagged,
		"namespaces are separate":                  namespaces,
		"a shard's payloads have one size":         payloadSizes,
		"probe reads a record":                     probe,
		"after Close nothing is called nor served": closed,
	} {
		t.Run(name, func(t *testing.T) {
			f := &fixture{T: t, Subject: open(t)}
			t.Cleanup(func() {
				if err := f.Tier.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			f.ns = f.open("m")
			test(f)
			// However the reads ended: leaders price loads with it.
			wait.For(t, "nothing is queued", func() bool { return f.Speed().QueuedBytes == 0 })
			if u := f.Usage(); u.Records < 0 || u.UsedBytes < 0 || u.UsedBytes > u.MaxBytes {
				t.Errorf("usage %+v", u)
			}
		})
	}
}

// fixture is a test on a tier with a namespace.
type fixture struct {
	*testing.T
	*Subject
	ns connector.NamespaceDigest
}

// Name is the tier's: the test has one too.
func (f *fixture) Name() string { return f.Tier.Name() }

func (f *fixture) open(model string) connector.NamespaceDigest {
	f.Helper()
	ns, err := f.OpenNamespace(manifests.Model(model))
	if err != nil {
		f.Fatal(err)
	}
	if want := manifests.Model(model).Digest(); ns != want {
		f.Fatalf("namespace %v, want its digest %v", ns, want)
	}
	return ns
}

// key is that of a block of a chain; block -1 has none.
func key(chain, block int) (k connector.Key) {
	if block >= 0 {
		copy(k[:], fmt.Appendf(nil, "%d/%d..............", chain, block))
	}
	return k
}

func keys(chain, n int) []connector.Key {
	out := make([]connector.Key, n)
	for i := range out {
		out[i] = key(chain, i)
	}
	return out
}

// record is a block of a chain.
func (f *fixture) record(chain, block int) store.Record {
	return store.Record{
		ID:     store.RecordID{Namespace: f.ns, Shard: 0, Key: key(chain, block)},
		Parent: key(chain, block-1), Proof: connector.Proof{byte(chain), byte(block), 1},
	}
}

func (f *fixture) chain(chain, n int) []store.Record {
	out := make([]store.Record, n)
	for i := range out {
		out[i] = f.record(chain, i)
	}
	return out
}

var scope = connector.ScopeDigest{3, 1, 4}

// errEarlier is in ops that were used before.
var errEarlier = errors.New("of an earlier use of the op")

// payload is that of a record, as its key and shard say.
func payload(id store.RecordID, bytes int) []byte {
	b := store.AlignedBuffer(bytes)
	for i := range b {
		b[i] = id.Key[i%len(id.Key)] ^ byte(i>>8) ^ byte(id.Shard)
	}
	return b
}

// write writes records, one after the other as the tier takes them, and returns how each ended.
func (f *fixture) write(records ...store.Record) []error {
	f.Helper()
	errs := make([]error, len(records))
	var all sync.WaitGroup
	ops := make([]*store.WriteOp, len(records))
	for i, r := range records {
		all.Add(1)
		op := &store.WriteOp{Record: r, Scope: scope, Payload: payload(r.ID, PayloadBytes), Err: errEarlier}
		ops[i] = op
		for n := 0; n == 0; {
			var err error
			n, err = f.Write([]*store.WriteOp{op}, func(op *store.WriteOp) {
				errs[i] = op.Err
				all.Done()
			})
			if n == 0 && !errors.Is(err, store.ErrBusy) {
				f.Fatalf("write of record %d: %v", i, err)
			}
		}
	}
	all.Wait()
	for i, op := range ops {
		if string(op.Payload) != string(payload(op.ID, PayloadBytes)) {
			f.Errorf("the write of record %d has changed its payload", i)
		}
	}
	return errs
}

func (f *fixture) mustWrite(records ...store.Record) {
	f.Helper()
	for i, err := range f.write(records...) {
		if err != nil {
			f.Fatalf("write of record %d: %v", i, err)
		}
	}
}

// read reads records and checks the bytes of those that are served.
func (f *fixture) read(ctx context.Context, records ...store.Record) []*store.ReadOp {
	f.Helper()
	ops := make([]*store.ReadOp, len(records))
	ended := make([]int, len(records))
	var mu sync.Mutex
	for i, r := range records {
		ops[i] = &store.ReadOp{Record: r, Payload: store.AlignedBuffer(PayloadBytes), Owner: &ended[i], Err: errEarlier}
	}
	f.Read(ctx, ops, func(op *store.ReadOp) {
		mu.Lock()
		defer mu.Unlock()
		*op.Owner.(*int)++
	})
	for i, op := range ops {
		if ended[i] != 1 {
			f.Errorf("the end of record %d was reported %d times by the time that Read returned", i, ended[i])
		}
		if op.Err == nil && string(op.Payload) != string(payload(op.ID, PayloadBytes)) {
			f.Errorf("record %d was served with other bytes", i)
		}
		if op.Err == nil && (op.From == "" || op.Scope != scope) {
			f.Errorf("record %d is from %q with scope %v", i, op.From, op.Scope)
		}
		if !op.Settled() && !errors.Is(op.Err, store.ErrTimeout) {
			f.Errorf("record %d ended with %v, and its buffer is in use", i, op.Err)
		}
	}
	return ops
}

// wantRead reads records and wants all to end with an error, or without one.
func (f *fixture) wantRead(want error, records ...store.Record) {
	f.Helper()
	for i, op := range f.read(f.Context(), records...) {
		if !errors.Is(op.Err, want) {
			f.Errorf("read of record %d: %v, want %v", i, op.Err, want)
		}
	}
}

// present reports which records are there.
func (f *fixture) present(records ...store.Record) []bool {
	at := make([]bool, len(records))
	for i, r := range records {
		f.Present(r.ID.Namespace, r.ID.Shard, []connector.Key{r.ID.Key}, at[i:i+1])
	}
	return at
}

func (f *fixture) lookup(chain, n int, ttl time.Duration) (int, store.LeaseID) {
	return f.Lookup(f.ns, []connector.Shard{0}, keys(chain, n), ttl)
}

// timeout is a context that ends before a stalled read does.
func (f *fixture) timeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(f.Context(), 20*time.Millisecond)
}
