package object

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/format"
)

func TestBodyIsReadFromAnyPlace(t *testing.T) {
	rng := seed.Random(t, 0)
	for range 50 {
		var b body
		var want []byte
		for range rng.IntN(6) {
			part := make([]byte, rng.IntN(5000))
			for i := range part {
				part[i] = byte(rng.Uint32())
			}
			b.add(part)
			want = append(want, part...)
		}
		if err := iotest.TestReader(&b, want); err != nil { // seeks, too
			t.Error(err)
		}
		from := rand.Int64N(b.bytes + 1)
		if _, err := b.Seek(from, io.SeekStart); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(&b); err != nil || !bytes.Equal(got, want[from:]) {
			t.Errorf("%d bytes from %d of %d: %v", len(got), from, b.bytes, err)
		}
	}
}

// op is the write of a record of some class.
func op(ns byte, shard connector.Shard, key, parent byte, bytes int) *write {
	w := &store.WriteOp{Payload: make([]byte, bytes)}
	w.ID = store.RecordID{Namespace: connector.NamespaceDigest{ns}, Shard: shard, Key: connector.Key{key}}
	w.Parent = connector.Key{parent}
	return &write{op: w}
}

func TestObjectsHaveOneClassAndABound(t *testing.T) {
	var batch []*write
	for i := range byte(10) {
		batch = append(batch, op(1, 0, i, 0, 4000), op(1, 1, i, 0, 4000), op(2, 0, i, 0, 4000), op(1, 0, i+50, 0, 9000))
	}
	all := pack(batch, 4*8192)
	n := 0
	for _, p := range all {
		slots := int64(0)
		for _, w := range p.writes {
			if c := (class{w.op.ID.Namespace, w.op.ID.Shard, len(w.op.Payload)}); c != p.class {
				t.Errorf("%+v in an object of %+v", c, p.class)
			}
			slots += format.SlotBytes(len(w.op.Payload))
		}
		if slots > 4*8192 {
			t.Errorf("%d bytes of slots", slots)
		}
		n += len(p.writes)
	}
	if n != len(batch) || len(all) != 3*3+5 {
		t.Errorf("%d writes in %d objects", n, len(all))
	}
	if one := pack([]*write{op(1, 0, 1, 0, 1<<20), op(1, 0, 2, 1, 1<<20)}, 8192); len(one) != 2 {
		t.Errorf("%d objects of records larger than one may be", len(one))
	}
	many := make([]*write, format.MaxObjectRecords+1)
	for i := range many {
		many[i] = op(1, 0, 1, 0, 1)
	}
	if got := pack(many, store.MaxPayloadBytes+format.Unit); len(got) != 2 {
		t.Errorf("%d objects of %d records", len(got), len(many))
	}
}

// What is in the bucket says what it is: the end of an object has its list, whose runs have parents and depths.
func TestObjectsEndWithTheirList(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n := c.open(nil)
		n.ready()
		first, _ := n.chain(1, 10)
		other, _ := n.chain(2, 4)
		n.mustWrite(append(append(first[:6:6], other...), first[6], first[8])...) // runs of 6, 4, 1 and 1
		place, there := n.catalog.Locate(first[0].ID, payloadBytes)
		if !there {
			t.Fatal("the record is not there")
		}
		b, err := n.bucket.Get(t.Context(), format.DataName(place.Object).String(), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
		all, err := io.ReadAll(b)
		if err != nil {
			t.Fatal(err)
		}
		id, _ := n.follower.Bucket()
		trailer, err := format.DecodeTrailer(all[len(all)-format.TrailerBytes:], place.Object, int64(len(all)))
		if err != nil {
			t.Fatal(err)
		}
		o, err := trailer.DecodeFooter(all[trailer.FooterOffset:][:trailer.FooterBytes], id, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := []format.Run{
			{First: 0, Depth: 0}, {First: 6, Depth: 0}, {First: 10, Depth: 6, Parent: first[5].ID.Key}, {First: 11, Depth: 1, Parent: first[7].ID.Key},
		}
		if len(o.Runs) != len(want) || len(o.Records) != 12 {
			t.Fatalf("%+v with %d records", o.Runs, len(o.Records))
		}
		for i := range want {
			if o.Runs[i] != want[i] {
				t.Errorf("run %d is %+v, want %+v", i, o.Runs[i], want[i])
			}
		}
	})
}

func TestLookupsDoNotAllocate(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n, _, keys := c.filled(nil, 100)
		time.Sleep(time.Second)
		shards, at := []connector.Shard{0}, make([]bool, len(keys))
		if got := testing.AllocsPerRun(100, func() {
			n.Present(n.ns, 0, keys, at)
			blocks, lease := n.Lookup(n.ns, shards, keys, time.Minute)
			if blocks != len(keys) || !n.Renew(lease, time.Minute) {
				t.Errorf("%d blocks", blocks)
			}
			n.Release(lease)
		}); got != 0 {
			t.Errorf("%v allocations", got)
		}
	})
}

func TestLeasesRunOut(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n, _, keys := c.filled(func(o *Options) { o.MaxLeases = 2 }, 3)
		_, a := n.Lookup(n.ns, []connector.Shard{0}, keys, time.Second)
		_, b := n.Lookup(n.ns, []connector.Shard{0}, keys, time.Hour)
		if got, _ := n.Lookup(n.ns, []connector.Shard{0}, keys, time.Hour); got != 0 {
			t.Error("a look-up finds something with all leases in force")
		}
		time.Sleep(2 * time.Second)
		if n.Renew(a, time.Minute) || !n.Renew(b, time.Hour) || n.Stats().Leases != 1 {
			t.Errorf("%d leases", n.Stats().Leases)
		}
		time.Sleep(n.o.LeaseMax)
		if !n.Renew(b, time.Hour) { // its time has come at the same moment, or not
			t.Log("the lease ended at its bound")
		}
		time.Sleep(n.o.Grace / 2)
		if n.Renew(b, time.Hour) {
			t.Error("a lease is renewed past half of the grace")
		}
	})
}

// A record that two calls write at once is written once, and both are told.
func TestWritesOfOneRecordJoin(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n := c.open(nil)
		n.ready()
		records, _ := n.chain(1, 4)
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { n.mustWrite(records...) })
		}
		all.Wait()
		if s := n.Stats(); s.Objects > 4 || s.Records != 4 {
			t.Errorf("%d objects, %d records", s.Objects, s.Records)
		}
	})
}

// Records of several sizes lie beside one another: what an engine holds is found.
func TestSizesLieBesideOneAnother(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n, records, keys := c.filled(nil, 4)
		if err := n.HoldPayload(n.ns, 0, 1000); err != nil {
			t.Fatal(err)
		}
		if n.prefix(keys) != 0 {
			t.Error("records of another size are found")
		}
		done := make(chan error, 1)
		w := &store.WriteOp{Record: records[0], Scope: scope, Payload: payload(records[0].ID, 1000)}
		if _, err := n.Write([]*store.WriteOp{w}, func(op *store.WriteOp) { done <- op.Err }); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || n.prefix(keys) != 1 {
			t.Errorf("%v, prefix of %d blocks", err, n.prefix(keys))
		}
		n.ReleasePayload(n.ns, 0)
		if n.prefix(keys) != 4 {
			t.Errorf("prefix of %d blocks", n.prefix(keys))
		}
	})
}
