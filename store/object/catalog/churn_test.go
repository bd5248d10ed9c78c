package catalog

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/object/format"
)

// TestAChainIsFoundWhileMemoryMoves has objects of all sizes come and go, so that the hash table grows and slabs
// are emptied, while a chain that stays is looked up.
func TestAChainIsFoundWhileMemoryMoves(t *testing.T) {
	var now atomic.Uint32
	now.Store(uint32(someTime))
	c := newCatalog(t, Options{Now: func() format.Seconds { return format.Seconds(now.Load()) }})
	g := seed.Random(t, 0)
	stays := randomKeys(g, 3000)
	staying := chainOf(1, stays, 16)
	added := 0 // of the objects that stay, one at a time, so that they lie in all slabs
	var stop atomic.Bool
	var all sync.WaitGroup
	found := make([]connector.Key, 0, len(stays))
	var mu sync.Mutex // guards found
	for range 2 {
		all.Go(func() {
			for p := new(Pins); !stop.Load(); c.Unpin(p) {
				mu.Lock()
				chain := found
				mu.Unlock()
				if n := c.Prefix(testSpace, shardZero, chain, p); n != len(chain) {
					t.Errorf("%d blocks of %d", n, len(chain))
					return
				}
				for i := 0; i < len(chain); i += 100 {
					if where, ok := c.Locate(recordID(chain[i]), testPayload); !ok || where.Object != staying[i/16].ID || int(where.Ordinal) != i%16 {
						t.Errorf("block %d is at %+v, %v", i, where, ok)
						return
					}
				}
			}
		})
	}
	for round := range uint64(12) {
		var gone format.List
		for i := range uint64(20) {
			objects := chainOf(1e6+round*1e5+i*1e3, randomKeys(g, 1000), 1+g.IntN(200))
			c.Apply(&format.List{Objects: objects})
			for o := range objects {
				gone.Deleted = append(gone.Deleted, objects[o].ID)
			}
			if added < len(staying) && i%4 == 0 {
				c.Apply(&format.List{Objects: staying[added : added+1]})
				added++
				mu.Lock()
				found = stays[:min(added*16, len(stays))]
				mu.Unlock()
			}
		}
		c.Apply(&gone)
		now.Add(goneSeconds + 1)
	}
	c.Apply(new(format.List))
	stop.Store(true)
	all.Wait()
	now.Add(retrySeconds)
	c.Apply(new(format.List)) // what was pinned may move now
	audit(t, c)
	if c.dead > c.filled>>wasteShift && c.dead > slabUnits {
		t.Errorf("%d of %d units are waste", c.dead, c.filled)
	}
}

func TestObjectsOfManyRecords(t *testing.T) {
	c := newCatalog(t, Options{})
	chain := randomKeys(seed.Random(t, 0), 3*format.MaxObjectRecords)
	const payload = 4096
	var objects []format.Object
	for i := range 3 {
		o := object(uint64(i), chain, i*format.MaxObjectRecords, format.MaxObjectRecords)
		o.PayloadBytes = payload
		for r := range o.Records {
			o.Records[r].Start = uint16(2 * r)
		}
		o.Bytes = sizeOf(&o)
		objects = append(objects, o)
	}
	u, err := c.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	apply(t, c, objects, len(chain))
	wantPrefix(t, c, chain, len(chain))
	for _, i := range []int{0, format.MaxObjectRecords - 1, format.MaxObjectRecords, len(chain) - 1} {
		p, ok := c.Locate(recordID(chain[i]), payload)
		o, r := &objects[i/format.MaxObjectRecords], i%format.MaxObjectRecords
		if from, bytes := o.Slot(r); !ok || p.Object != o.ID || p.From != from || p.Bytes != bytes || int(p.Ordinal) != r {
			t.Errorf("block %d is at %+v, %v; want %d bytes at %d", i, p, ok, bytes, from)
		}
	}
	audit(t, c)
	c.Apply(&format.List{Deleted: []format.ObjectID{objects[1].ID}})
	wantPrefix(t, c, chain, format.MaxObjectRecords)
	audit(t, c)
	events := 0
	for events < len(chain)+format.MaxObjectRecords {
		list, err := u.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range list {
			if n := events + i; n > 0 && n < len(chain) && (e.ID.Key != chain[n] || e.Parent != chain[n-1]) {
				t.Fatalf("event %d is %+v", n, e)
			}
		}
		events += len(list)
	}
}
