package catalog

import (
	"encoding/binary"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/object/format"
)

// audit checks that slabs, hash table and sums agree.
func audit(t testing.TB, c *Catalog) {
	t.Helper()
	sums := c.sums
	c.sums = Stats{LostObjects: sums.LostObjects}
	filled, live, entries := 0, 0, 0
	for s := range c.slabs {
		if c.slabs[s].memory == nil {
			continue
		}
		filled += slabUnits
		if s == c.head {
			filled -= slabUnits - c.slabs[s].filled
		}
		c.eachIn(s, func(at ref, o *row) {
			switch {
			case !o.is(isRow):
				t.Fatalf("unit %d is no row", at)
			case o.is(isDead):
				return
			}
			live += o.liveUnits()
			c.tally(o, 1)
			if found, _ := c.object(&o.id); found != at {
				t.Fatalf("object %v is at %d and %d", o.id, at, found)
			}
			entries++
			if o.is(isOut) {
				return
			}
			k := c.groups[o.group].class
			for i := range c.records(at, o) {
				r := at + rowUnits + ref(i)
				if c.record(r).ordinal() != i || c.rowOf(r) != at {
					t.Fatalf("record %d of the object at %d is %+v", i, at, c.record(r))
				}
				if c.record(r).at&isLoose == 0 {
					c.hash.position(k.hash(&c.record(r).key), r)
					entries++
				}
			}
		})
	}
	for _, n := range c.namespaces {
		for _, s := range n.shards {
			for _, k := range s.classes {
				if k.offered%2 != 0 {
					t.Errorf("%d records of a class, counted twice", k.offered)
				}
				k.offered /= 2
			}
		}
	}
	if c.sums != sums {
		t.Fatalf("sums are %+v, want %+v", sums, c.sums)
	}
	if filled != c.filled || live != c.filled-c.dead || entries != c.hash.count {
		t.Fatalf("%d units, %d live, %d entries; want %d, %d, %d", c.filled, c.filled-c.dead, c.hash.count, filled, live, entries)
	}
}

// source makes lists of what a fuzzer gives.
type source struct{ data []byte }

func (s *source) below(n int) int {
	if len(s.data) == 0 {
		return 0
	}
	b := int(s.data[0])
	s.data = s.data[1:]
	return b % n
}

func (s *source) id() format.ObjectID { return format.NewObjectID(testWriter, uint64(s.below(24))) }

func (s *source) key() (k connector.Key) {
	binary.LittleEndian.PutUint64(k[:], uint64(s.below(40)))
	if s.below(30) == 29 { // as if it were an object
		return connector.Key(s.id())
	}
	return k
}

func (s *source) object() format.Object {
	o := format.Object{
		ID: s.id(), Namespace: connector.NamespaceDigest{byte(s.below(2))}, Shard: connector.Shard(s.below(2)),
		PayloadBytes: testPayload << s.below(2), Needs: uint16(s.below(8) / 7), Used: format.Seconds(s.below(256)),
	}
	for i := range 1 + s.below(12) {
		o.Records = append(o.Records, format.Record{Key: s.key(), Start: uint16(40 * i)})
		if i == 0 || s.below(4) == 0 {
			o.Runs = append(o.Runs, format.Run{First: uint16(i), Depth: uint16(s.below(256)), Parent: s.key()})
		}
	}
	o.Bytes = sizeOf(&o)
	return o
}

func (s *source) list() *format.List {
	l := &format.List{Name: format.LogName(1)}
	for range s.below(6) {
		l.Objects = append(l.Objects, s.object())
	}
	for range s.below(3) {
		l.Used = append(l.Used, format.Use{Object: s.id(), When: format.Seconds(s.below(256))})
	}
	for range s.below(3) {
		l.Removed = append(l.Removed, format.Removal{Object: s.id(), When: format.Seconds(s.below(256)), Cause: format.Cause(s.below(256))})
	}
	for range s.below(3) {
		l.Deleted = append(l.Deleted, s.id())
	}
	return l
}

// FuzzApply applies lists as they are decoded, those that can be encoded.
func FuzzApply(f *testing.F) {
	f.Add([]byte("a list"))
	f.Add([]byte("\x05\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x05\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"))
	f.Fuzz(func(t *testing.T, data []byte) {
		now := someTime
		c := newCatalog(t, Options{Now: func() format.Seconds { return now }})
		for s := (source{data}); len(s.data) > 0; {
			b, err := s.list().Encode(nil)
			if err != nil {
				continue
			}
			l, err := format.DecodeList(b, format.LogName(1), format.BucketID{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			c.Apply(l)
			if s.below(8) == 0 {
				c.Lost(s.id(), format.CauseDamaged)
			}
			now += format.Seconds(s.below(4) * goneSeconds / 2)
			c.Prefix(connector.NamespaceDigest{}, []connector.Shard{0, 1}, []connector.Key{s.key(), s.key()}, nil)
			audit(t, c)
		}
	})
}
