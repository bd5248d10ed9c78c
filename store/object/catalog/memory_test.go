package catalog

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/format"
)

// inUse is the memory of slabs up to where they are filled, and of the hash table.
func (c *Catalog) inUse() int64 {
	n := c.hash.bytes()
	for i := range c.slabs {
		n += int64(c.slabs[i].filled) * unitBytes
	}
	return n
}

// TestMemoryOfARecord measures while the catalog doubles, and so over the growths of its hash table.
func TestMemoryOfARecord(t *testing.T) {
	if testing.Short() {
		t.Skip("millions of records")
	}
	for _, x := range []struct {
		records int // an object
		most    float64
	}{{6, 40}, {8, 38}, {16, 34}, {64, 31}} {
		t.Run(fmt.Sprint(x.records), func(t *testing.T) {
			c := newCatalog(t, Options{})
			g := seed.Random(t, x.records)
			counter, records := uint64(0), 0
			least, most := 1e9, 0.0
			for records < 600_000 {
				chain := randomKeys(g, x.records*100)
				c.Apply(&format.List{Objects: chainOf(counter, chain, x.records)})
				counter, records = counter+100, records+len(chain)
				if records > 300_000 {
					per := float64(c.inUse()) / float64(records)
					least, most = min(least, per), max(most, per)
				}
			}
			t.Logf("%d records an object: %.1f to %.1f bytes a record", x.records, least, most)
			if most > x.most {
				t.Errorf("%.1f bytes a record, want at most %.1f", most, x.most)
			}
			s := c.Stats()
			if n := s.IndexBytes - c.inUse(); n < 0 || n > 2*slabBytes {
				t.Errorf("%d bytes in use, and %d in all", c.inUse(), s.IndexBytes)
			}
		})
	}
}

// TestMemoryIsUsedAgain has objects come and go, as a bucket at its cap has.
func TestMemoryIsUsedAgain(t *testing.T) {
	k := &clock{now: someTime}
	c := newCatalog(t, Options{Now: k.read})
	g := seed.Random(t, 0)
	var live []format.Object
	most := int64(0)
	for round := range uint64(40) {
		chain := randomKeys(g, 16_000)
		objects := chainOf(1e6*round, chain, 1+g.IntN(30))
		c.Apply(&format.List{Objects: objects})
		live = append(live, objects...)
		g.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
		var gone format.List
		for len(live) > 20_000 {
			last := len(live) - 1
			gone.Removed = append(gone.Removed, removal(&live[last], k.now))
			gone.Deleted = append(gone.Deleted, live[last].ID)
			live = live[:last]
		}
		k.now += goneSeconds / 2
		c.Apply(&gone)
		if round > 20 {
			most = max(most, c.Stats().IndexBytes)
		}
	}
	audit(t, c)
	records := 0
	for i := range live {
		o := &live[i]
		records += len(o.Records)
		for r := range o.Records {
			p, ok := c.Locate(recordID(o.Records[r].Key), testPayload)
			if from, _ := o.Slot(r); !ok || p.Object != o.ID || p.From != from {
				t.Fatalf("record %d of %v is at %+v, %v", r, o.ID, p, ok)
			}
		}
	}
	if s := c.Stats(); s.Records != int64(records) || s.Objects != int64(len(live)) {
		t.Errorf("%+v, want %d records in %d objects", s, records, len(live))
	}
	t.Logf("%d records in %d objects, %d slabs, at most %d bytes", records, len(live), len(c.slabs), most)
	if got := c.filled - c.dead; got > 21*records/10+20_000 {
		t.Errorf("%d units for %d records", got, records)
	}
	if c.dead > c.filled/8+slabUnits {
		t.Errorf("%d of %d units are waste", c.dead, c.filled)
	}
}

func TestPinnedObjectsDoNotMove(t *testing.T) {
	k := &clock{now: someTime}
	c := newCatalog(t, Options{Now: k.read})
	g := seed.Random(t, 0)
	first := randomKeys(g, 16)
	apply(t, c, chainOf(1, first, 16), 16)
	var p Pins
	c.Prefix(testSpace, shardZero, first, &p)
	at := p.objects[0]
	for round := range uint64(20) {
		objects := chainOf(1000*(round+1), randomKeys(g, 60_000), 64)
		c.Apply(&format.List{Objects: objects})
		var gone format.List
		for i := range objects {
			gone.Deleted = append(gone.Deleted, objects[i].ID)
		}
		c.Apply(&gone)
		k.now += goneSeconds + 1
	}
	id := format.NewObjectID(testWriter, 1)
	if now, _ := c.object(&id); now != at {
		t.Errorf("a pinned object moved from %d to %d", at, now)
	}
	if n := len(c.slabs); n > 6 {
		t.Errorf("%d slabs", n)
	}
	c.Unpin(&p)
	c.Apply(new(format.List))
	if info, ok := c.Object(id); !ok || !info.Offered {
		t.Errorf("%+v, %v", info, ok)
	}
	wantPrefix(t, c, first, 16)
	audit(t, c)
}

func TestTheColdestAreLeftOutWhereMemoryIsShort(t *testing.T) {
	c := newCatalog(t, Options{IndexBytes: MinIndexBytes})
	g := seed.Random(t, 0)
	u, err := c.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	if err := u.Snapshot(t.Context(), func(store.Resident) error { return nil }); err != nil {
		t.Fatal(err)
	}
	var chains [][]connector.Key
	hour := func(i int) format.Seconds { return someTime + format.Seconds((i*37)%60*hourSeconds) }
	for i := range 60 {
		chain := randomKeys(g, 6400)
		objects := chainOf(uint64(1000*i), chain, 16)
		for o := range objects {
			objects[o].Used = hour(i)
		}
		c.Apply(&format.List{Objects: objects})
		chains = append(chains, chain)
		if s := c.Stats(); s.IndexBytes > MinIndexBytes {
			t.Fatalf("%d bytes in use, more than %d", s.IndexBytes, int64(MinIndexBytes))
		}
	}
	s := c.Stats()
	t.Logf("%+v", s)
	if s.Objects != 24_000 || s.Records+s.LeftOut != 384_000 || s.Records < 100_000 {
		t.Errorf("%+v", s)
	}
	coldest := format.Seconds(0) // that is offered
	hottest := format.Seconds(0) // that is left out
	for i, chain := range chains {
		if c.Prefix(testSpace, shardZero, chain, nil) == len(chain) {
			if coldest == 0 || hour(i) < coldest {
				coldest = hour(i)
			}
		} else {
			hottest = max(hottest, hour(i))
		}
	}
	if hottest > coldest+2*hourSeconds {
		t.Errorf("objects used at %d are left out, others used at %d are not", hottest, coldest)
	}
	offered := make(map[store.RecordID]bool)
	again, err := c.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	for u.Seq() < again.Seq() {
		list, err := u.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.Kind == store.EventStored {
				offered[e.ID] = true
			} else {
				delete(offered, e.ID)
			}
		}
	}
	audit(t, c)
	if len(offered) != int(s.Records) {
		t.Errorf("%d records by events, %d are offered", len(offered), s.Records)
	}
	if got := c.Coldest(s.Bytes); len(got) != 24_000 {
		t.Errorf("the collector sees %d objects", len(got))
	}
}

func TestLookUpsDoNotAllocate(t *testing.T) {
	c := newCatalog(t, Options{Now: func() format.Seconds { return someTime }})
	g := seed.Random(t, 0)
	chain := randomKeys(g, 8192)
	objects := chainOf(1, chain, 16)
	second := slices.Clone(objects)
	for i := range second {
		second[i].Shard, second[i].ID = 1, format.NewObjectID(testWriter, uint64(100_000+i))
	}
	apply(t, c, append(objects, second...), 2*8192)
	var p Pins
	at := make([]bool, len(chain))
	shards := []connector.Shard{0, 1}
	id := recordID(chain[4000])
	look := func() {
		if n := c.Prefix(testSpace, shards, chain, &p); n != len(chain) {
			t.Errorf("%d blocks", n)
		}
		c.Unpin(&p)
		c.Prefix(testSpace, shards, chain, nil)
		c.Present(testSpace, 0, chain, at)
		c.Used(testSpace, shards, chain)
		if _, ok := c.Locate(id, testPayload); !ok {
			t.Error("not found")
		}
	}
	look() // memory of the pins, and the uses
	c.Uses()
	if n := testing.AllocsPerRun(10, look); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
