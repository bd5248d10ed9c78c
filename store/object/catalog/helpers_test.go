package catalog

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/format"
)

const testPayload = 64 << 10

var (
	testSpace  = connector.NamespaceDigest{1}
	shardZero  = []connector.Shard{0}
	testWriter = format.WriterID{7}
)

// newCatalog returns a catalog that a test closes.
func newCatalog(t testing.TB, o Options) *Catalog {
	t.Helper()
	if o.Now == nil {
		o.Now = func() format.Seconds { return someTime }
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// randomKeys are the keys of a chain.
func randomKeys(g *rand.Rand, n int) []connector.Key {
	keys := make([]connector.Key, n)
	for i := range keys {
		binary.LittleEndian.PutUint64(keys[i][:], g.Uint64())
		binary.LittleEndian.PutUint64(keys[i][8:], g.Uint64())
	}
	return keys
}

// object is one with a run of a chain's blocks, from a block on.
func object(counter uint64, chain []connector.Key, from, n int) format.Object {
	o := format.Object{
		ID: format.NewObjectID(testWriter, counter), Namespace: testSpace, PayloadBytes: testPayload,
		Runs: []format.Run{{Depth: uint16(from)}},
	}
	if from > 0 {
		o.Runs[0].Parent = chain[from-1]
	}
	units := format.SlotBytes(testPayload) / format.Unit
	for i := range n {
		o.Records = append(o.Records, format.Record{Key: chain[from+i], Start: uint16(int64(i) * units)})
	}
	o.Bytes = sizeOf(&o)
	return o
}

// sizeOf is the size of an object whose records are not compressed.
func sizeOf(o *format.Object) uint32 {
	slots := format.SlotBytes(int(o.PayloadBytes)) * int64(len(o.Records))
	footer := slots - format.SlotsBytes(uint32(slots), len(o.Runs), len(o.Records)) // footer and trailer, rounded
	return uint32(slots + footer)
}

// chainOf puts a chain into objects of n records.
func chainOf(counter uint64, chain []connector.Key, n int) (all []format.Object) {
	for from := 0; from < len(chain); from += n {
		all = append(all, object(counter, chain, from, min(n, len(chain)-from)))
		counter++
	}
	return all
}

func removal(o *format.Object, when format.Seconds) format.Removal {
	return format.Removal{Object: o.ID, When: when, Cause: format.CauseAge}
}

func recordID(key connector.Key) store.RecordID {
	return store.RecordID{Namespace: testSpace, Key: key}
}

// apply applies objects, and checks how many records come.
func apply(t testing.TB, c *Catalog, objects []format.Object, want int) {
	t.Helper()
	if added, removed := c.Apply(&format.List{Objects: objects}); added != want || removed != 0 {
		t.Fatalf("%d records came and %d went, want %d and none", added, removed, want)
	}
}

// wantPrefix checks how much of a chain is found.
func wantPrefix(t testing.TB, c *Catalog, chain []connector.Key, want int) {
	t.Helper()
	if n := c.Prefix(testSpace, shardZero, chain, nil); n != want {
		t.Errorf("%d of %d blocks are found, want %d", n, len(chain), want)
	}
}

// clock is a clock of a bucket that a test sets.
type clock struct{ now format.Seconds }

func (k *clock) read() format.Seconds { return k.now }

const someTime = format.Seconds(1_800_000_000)

// untilHalf is how long from now a lease may hold with a grace.
func untilHalf(p *Pins, grace time.Duration) bool {
	left := time.Until(p.Until())
	return left <= grace/2 && left > grace/2-time.Minute
}
