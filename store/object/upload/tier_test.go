package upload

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/store"
	tier "github.com/kvconn/kvconn/store/object"
	"github.com/kvconn/kvconn/store/object/bucket"
)

// bucketTier is the object tier as a target.
type bucketTier struct{ *tier.Tier }

func (bucketTier) Ready(ctx context.Context) error {
	select {
	case <-time.After(10 * time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func openTier(t *testing.T, server *s3mem.Server) bucketTier {
	t.Helper()
	opened, err := tier.Open(tier.Options{
		Bucket: bucket.Options{
			URL: "s3://bucket/prefix", Endpoint: "http://s3.test:9000", Region: "here", Keys: &bucket.Keys{ID: "id", Secret: "secret"},
			Transport: s3proxy.Direct(server),
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return bucketTier{opened}
}

// What one node saves another node reads, for 1.1 PUT per 8 MiB at most.
func TestOneNodeUploadsAndAnotherReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const records, recordBytes = 128, 1 << 20
		server := s3mem.New(s3mem.Options{}, "bucket")
		a, b := openTier(t, server), openTier(t, server)
		pass(time.Minute)
		from := newBench(t, tiertest.Options{}).from
		m := manifests.Model("m")
		ns, err := from.OpenNamespace(m)
		if err != nil {
			t.Fatal(err)
		}
		from.manifests = []store.NamespaceInfo{{Digest: ns, Manifest: m.Canonical()}}
		text := func(i int) []byte {
			p := store.AlignedBuffer(recordBytes)
			for at := range p {
				p[at] = byte(at>>8 ^ at*i)
			}
			return p
		}
		for i := range records {
			k := key(1, i)
			r := store.Record{ID: store.RecordID{Namespace: ns, Key: k}, Parent: key(1, i-1), Proof: proof(k)}
			from.records[r.ID] = r
			if _, err := from.Write([]*store.WriteOp{{Record: r, Payload: text(i)}}, func(*store.WriteOp) {}); err != nil {
				t.Fatal(err)
			}
		}
		before := server.Counts()
		u, err := Start(from, a, Options{})
		if err != nil {
			t.Fatal(err)
		}
		pass(30 * time.Second)
		if err := u.Close(t.Context()); err != nil {
			t.Error(err)
		}
		pass(30 * time.Second)
		after := server.Counts()
		if puts, most := after.Put-before.Put, uint64(11*records*recordBytes/(80<<20)); puts > most {
			t.Errorf("%d PUTs, at most %d", puts, most)
		}
		t.Logf("%d PUTs for %d MiB, %+v", after.Put-before.Put, records*recordBytes>>20, u.Stats())

		if _, err := b.OpenNamespace(m); err != nil {
			t.Fatal(err)
		}
		found, lease := b.Lookup(ns, []connector.Shard{0}, chainOf(1, 0, records), time.Minute)
		if found != records {
			t.Fatalf("%d blocks are found", found)
		}
		var ops []*store.ReadOp
		for i := range records {
			ops = append(ops, &store.ReadOp{Record: from.records[store.RecordID{Namespace: ns, Key: key(1, i)}], Payload: store.AlignedBuffer(recordBytes)})
		}
		b.Read(t.Context(), ops, func(*store.ReadOp) {})
		for i, op := range ops {
			if op.Err != nil || !bytes.Equal(op.Payload, text(i)) {
				t.Errorf("record %d: %v", i, op.Err)
			}
		}
		b.Release(lease)
		for _, c := range []interface{ Close() error }{a, b, from} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
