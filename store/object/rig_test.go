package object

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
)

const payloadBytes = 20_000

var shardZero = []connector.Shard{0}

// cloud is a server with a bucket, and a proxy that injects faults.
type cloud struct {
	*testing.T
	server *s3mem.Server
	proxy  *s3proxy.Proxy
}

// inCloud runs a test where time passes at once.
func inCloud(t *testing.T, f func(t *testing.T, c *cloud)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{T: t, server: s3mem.New(s3mem.Options{}, "bucket")}
		c.proxy = s3proxy.New(c.server)
		f(t, c)
	})
}

// node is a tier on the cloud's bucket, with a namespace.
type node struct {
	*Tier
	t   *testing.T
	log *testlog.Text
	ns  connector.NamespaceDigest
}

func (c *cloud) options(log *testlog.Text) Options {
	logger := slog.New(slog.NewTextHandler(log, nil))
	return Options{
		Bucket: bucket.Options{
			URL: "s3://bucket/prefix", Endpoint: "http://s3.test:9000", Region: "here", Keys: &bucket.Keys{ID: "id", Secret: "secret"},
			Transport: s3proxy.Direct(c.proxy),
		},
		Logger: logger,
	}
}

// open opens a node. It is closed at the test's end.
func (c *cloud) open(change func(*Options)) *node {
	c.Helper()
	n := &node{t: c.T, log: &testlog.Text{}}
	o := c.options(n.log)
	if change != nil {
		change(&o)
	}
	var err error
	if n.Tier, err = Open(o); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = n.Close() })
	if n.ns, err = n.OpenNamespace(manifests.Model("m")); err != nil {
		c.Fatal(err)
	}
	return n
}

// filled opens a node and writes the blocks of chain 1.
func (c *cloud) filled(change func(*Options), blocks int) (n *node, records []store.Record, keys []connector.Key) {
	c.Helper()
	n = c.open(change)
	n.ready()
	records, keys = n.chain(1, blocks)
	n.mustWrite(records...)
	return n, records, keys
}

// record is block i of a chain.
func (n *node) record(chain, i int) store.Record {
	key := func(i int) (k connector.Key) {
		if i >= 0 {
			copy(k[:], fmt.Appendf(nil, "%d/%d..............", chain, i))
		}
		return k
	}
	return store.Record{
		ID: store.RecordID{Namespace: n.ns, Key: key(i)}, Parent: key(i - 1), Proof: connector.Proof{byte(chain), byte(i), 1},
	}
}

func (n *node) chain(chain, blocks int) (all []store.Record, keys []connector.Key) {
	for i := range blocks {
		all = append(all, n.record(chain, i))
		keys = append(keys, all[i].ID.Key)
	}
	return all, keys
}

var scope = connector.ScopeDigest{3, 1, 4}

// payload is that of a record.
func payload(id store.RecordID, bytes int) []byte {
	b := store.AlignedBuffer(bytes)
	noise := rand.NewChaCha8([32]byte(append(id.Key[:], append(make([]byte, 15), byte(id.Shard))...)))
	_, _ = noise.Read(b)
	return b
}

// write writes records with one call, and returns how each ended.
func (n *node) write(records ...store.Record) []error {
	n.t.Helper()
	ops := make([]*store.WriteOp, len(records))
	for i, r := range records {
		ops[i] = &store.WriteOp{Record: r, Scope: scope, Payload: payload(r.ID, payloadBytes)}
	}
	errs := make([]error, len(records))
	var all sync.WaitGroup
	all.Add(len(ops))
	accepted, err := n.Write(ops, func(op *store.WriteOp) {
		errs[slices.Index(ops, op)] = op.Err
		all.Done()
	})
	for i := accepted; i < len(ops); i++ {
		errs[i] = err
		all.Done()
	}
	all.Wait()
	return errs
}

func (n *node) mustWrite(records ...store.Record) {
	n.t.Helper()
	for i, err := range n.write(records...) {
		if err != nil {
			n.t.Fatalf("write of record %d: %v", i, err)
		}
	}
}

// read reads records and checks the bytes of those that are served.
func (n *node) read(records ...store.Record) []error {
	n.t.Helper()
	ops := make([]*store.ReadOp, len(records))
	for i, r := range records {
		ops[i] = &store.ReadOp{Record: r, Payload: store.AlignedBuffer(payloadBytes)}
	}
	errs := make([]error, len(ops))
	var mu sync.Mutex
	n.Read(n.t.Context(), ops, func(op *store.ReadOp) {
		mu.Lock()
		defer mu.Unlock()
		errs[slices.Index(ops, op)] = op.Err
	})
	for i, op := range ops {
		if op.Err == nil && (string(op.Payload) != string(payload(op.ID, payloadBytes)) || op.Scope != scope || op.From != "object") {
			n.t.Errorf("record %d has other bytes, or another scope, or is from %q", i, op.From)
		}
	}
	return errs
}

func (n *node) mustRead(records ...store.Record) {
	n.t.Helper()
	for i, err := range n.read(records...) {
		if err != nil {
			n.t.Errorf("read of record %d: %v", i, err)
		}
	}
}

// prefix is how many blocks of a chain a look-up finds.
func (n *node) prefix(keys []connector.Key) int {
	blocks, lease := n.Lookup(n.ns, []connector.Shard{0}, keys, time.Minute)
	n.Release(lease)
	return blocks
}

// ready waits until the node knows the bucket.
func (n *node) ready() {
	n.t.Helper()
	n.until("the bucket is not known", func() bool { return !n.follower.Good().IsZero() })
}

func (n *node) until(what string, is func() bool) {
	n.t.Helper()
	for end := time.Now().Add(10 * time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("%s; log: %s", what, n.log)
		}
	}
}
