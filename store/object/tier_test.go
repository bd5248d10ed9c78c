package object

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

func TestRecordsComeBack(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		c.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Delay: time.Second}})
		n := c.open(nil)
		records, keys := n.chain(1, 20)
		if errs := n.write(records[0]); !errors.Is(errs[0], store.ErrBusy) {
			t.Errorf("a write before the bucket is known: %v", errs[0])
		}
		c.proxy.Stop()
		n.ready()
		before := c.server.Counts()
		n.mustWrite(records...)
		after := c.server.Counts()
		if puts := after.Put - before.Put; puts != 3 { // manifest, object, list
			t.Errorf("%d PUTs", puts)
		}
		if got := n.prefix(keys); got != 20 {
			t.Errorf("prefix of %d blocks", got)
		}
		n.mustRead(records...)
		if got := c.server.Counts().Get - after.Get; got > 2 {
			t.Errorf("%d GETs", got)
		}
		if u := n.Usage(); u.Records != 20 || u.Hits != 20 {
			t.Errorf("usage %+v", u)
		}
	})
}

// What one node writes another finds, reads, and keeps finding after a start.
func TestNodesShareABucket(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		a, b := c.open(nil), c.open(nil)
		a.ready()
		b.ready()
		records, keys := a.chain(1, 20)
		began := time.Now()
		a.mustWrite(records...)
		b.until("what one node wrote another does not find", func() bool { return b.prefix(keys) == 20 })
		if d := time.Since(began); d > 30*time.Second {
			t.Errorf("it took %v", d)
		}
		b.mustRead(records...)
		more, moreKeys := b.chain(2, 10)
		b.mustWrite(more...)
		a.until("the other way", func() bool { return a.prefix(moreKeys) == 10 })
		a.mustRead(more...)
		if as, bs := a.Stats(), b.Stats(); as.Steward == bs.Steward || as.Objects != 2 || bs.Records != 30 {
			t.Errorf("stewards %v, %v; %d objects, %d records", as.Steward, bs.Steward, as.Objects, bs.Records)
		}
		late := c.open(nil)
		late.ready()
		if got := late.prefix(keys); got != 20 {
			t.Errorf("a node that joins finds %d blocks", got)
		}
		if info := late.Namespaces(); len(info) != 1 || info[0].Manifest == nil {
			t.Errorf("namespaces %+v", info)
		}
		// What both have is written once.
		objects := late.Stats().Objects
		if late.mustWrite(records...); late.Stats().Objects != objects {
			t.Error("records are written that are there")
		}
	})
}

// Look-ups and presence cost no request, on any node.
func TestLookupsCostNoRequest(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n, _, keys := c.filled(nil, 50)
		time.Sleep(time.Minute)
		n.prefix(keys) // on an idle node this asks for news, and does not wait for them
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		before := c.server.Counts().Requests()
		for range 100 {
			n.Present(n.ns, 0, keys, make([]bool, len(keys)))
			n.Touch(n.ns, 0, keys)
			_, lease := n.Lookup(n.ns, []connector.Shard{0}, keys, time.Minute)
			n.Renew(lease, time.Minute)
			n.Release(lease)
			n.Used(n.ns, []connector.Shard{0}, keys)
		}
		if got := c.server.Counts().Requests() - before; got != 0 {
			t.Errorf("%d requests", got)
		}
	})
}

// A ring of keys seals all that is written; a node without it finds nothing, and says which key it lacks.
func TestSealedBucket(t *testing.T) {
	ring, err := seal.New(seal.Key(bytes.Repeat([]byte{1, 2, 3, 4}, 8)))
	if err != nil {
		ring, err = seal.New(seal.Key([]byte("0123456789abcdefghijklmnopqrstuv")))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, compress := range []bool{false, true} {
		inCloud(t, func(t *testing.T, c *cloud) {
			sealed := func(o *Options) { o.Ring, o.Compress = ring, compress }
			a, b := c.open(sealed), c.open(sealed)
			a.ready()
			b.ready()
			records, keys := a.chain(1, 20)
			a.mustWrite(records...)
			a.mustRead(records...)
			b.until("another node with the key does not find it", func() bool { return b.prefix(keys) == 20 })
			b.mustRead(records...)
			without := c.open(nil)
			time.Sleep(time.Minute)
			if n := without.prefix(keys); n != 0 {
				t.Errorf("%d blocks are found without the key", n)
			}
			if !strings.Contains(without.log.String(), seal.KeyName(ring.KeyID())) {
				t.Errorf("the log does not name the key: %s", without.log)
			}
		})
	}
}

// A node with a key finds nothing in a bucket where nothing is sealed.
func TestUnsealedRecordsAreNotOffered(t *testing.T) {
	ring, err := seal.New(seal.Key([]byte("0123456789abcdefghijklmnopqrstuv")))
	if err != nil {
		t.Fatal(err)
	}
	inCloud(t, func(t *testing.T, c *cloud) {
		_, _, keys := c.filled(nil, 5)
		time.Sleep(time.Minute)
		sealed := c.open(func(o *Options) { o.Ring = ring })
		time.Sleep(time.Minute)
		if n := sealed.prefix(keys); n != 0 {
			t.Errorf("%d blocks are found", n)
		}
	})
}

// Payloads that shrink are stored compressed, and come back.
func TestCompressedRecordsComeBack(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n := c.open(func(o *Options) { o.Compress = true })
		n.ready()
		records, _ := n.chain(1, 12)
		ops := make([]*store.WriteOp, len(records))
		var all sync.WaitGroup
		for i, r := range records {
			b := store.AlignedBuffer(60_000)
			for j := range b {
				b[j] = byte(j * 7 * (j % 2)) // every other byte is zero
			}
			ops[i] = &store.WriteOp{Record: r, Scope: scope, Payload: b}
			all.Add(1)
		}
		want := bytes.Clone(ops[0].Payload)
		if accepted, err := n.Write(ops, func(op *store.WriteOp) {
			if op.Err != nil {
				t.Error(op.Err)
			}
			all.Done()
		}); accepted != len(ops) || err != nil {
			t.Fatal(accepted, err)
		}
		all.Wait()
		for _, r := range records {
			op := &store.ReadOp{Record: r, Payload: store.AlignedBuffer(60_000)}
			n.Read(t.Context(), []*store.ReadOp{op}, func(*store.ReadOp) {})
			if op.Err != nil || !bytes.Equal(op.Payload, want) {
				t.Errorf("%v", op.Err)
			}
		}
		t.Logf("%d bytes for %d records of 60,000", n.Usage().UsedBytes, len(records))
	})
}

// A bucket that does not answer keeps nobody from opening the tier; it says what is wrong, once, and goes on when the
// bucket is there.
func TestBucketThatIsNotThere(t *testing.T) {
	for name, do := range map[string]s3proxy.Effect{
		"no bucket": {Status: 404, Code: "NoSuchBucket"},
		"hangs":     {Delay: time.Hour},
		"page":      {Page: 502},
		"wrong key": {Status: 403, Code: "InvalidAccessKeyId"},
	} {
		t.Run(name, func(t *testing.T) {
			inCloud(t, func(t *testing.T, c *cloud) {
				c.proxy.Play(s3proxy.Clause{Do: do})
				began := time.Now()
				n := c.open(nil)
				if time.Since(began) > 0 {
					t.Error("Open waits for the bucket")
				}
				records, keys := n.chain(1, 3)
				time.Sleep(10 * time.Minute)
				if got := n.prefix(keys); got != 0 {
					t.Errorf("%d blocks", got)
				}
				if errs := n.write(records...); !errors.Is(errs[0], store.ErrBusy) {
					t.Error(errs[0])
				}
				if errs := n.read(records...); !errors.Is(errs[0], store.ErrGone) {
					t.Error(errs[0])
				}
				if err := n.Probe(t.Context()); !errors.Is(err, store.ErrGone) {
					t.Error(err)
				}
				if got := strings.Count(n.log.String(), "the bucket cannot be used"); got < 1 || got > 5 || !strings.Contains(n.log.String(), "remedy=") {
					t.Errorf("%d warnings: %s", got, n.log)
				}
				c.proxy.Stop()
				n.ready()
				n.mustWrite(records...)
				n.mustRead(records...)
			})
		})
	}
}

// A node that may not write reads what others write, and writes when it may.
func TestBucketThatMayOnlyBeRead(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		_, records, keys := c.filled(nil, 5)
		time.Sleep(time.Minute)
		c.proxy.Play(s3proxy.Clause{On: s3proxy.Put, Do: s3proxy.Effect{Status: 403, Code: "AccessDenied"}})
		b := c.open(nil)
		b.until("nothing is read", func() bool { return b.prefix(keys) == 5 })
		b.mustRead(records...)
		more, _ := b.chain(2, 2)
		if errs := b.write(more...); !errors.Is(errs[0], store.ErrBusy) || !b.Stats().ReadOnly {
			t.Errorf("%v", errs[0])
		}
		if got := strings.Count(b.log.String(), "refuses writes"); got != 1 {
			t.Errorf("%d warnings: %s", got, b.log)
		}
		c.proxy.Stop()
		time.Sleep(2 * time.Minute)
		b.mustWrite(more...)
	})
}

// Writes that are refused say nothing of reads: what the bucket has stays on offer.
func TestBucketThatMayOnlyBeReadIsOffered(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		a, records, keys := c.filled(nil, 5)
		time.Sleep(time.Minute)
		_ = a.Close()
		c.proxy.Play(s3proxy.Clause{On: s3proxy.Put, Do: s3proxy.Effect{Status: 403, Code: "AccessDenied"}})
		b := c.open(nil)
		b.until("nothing is read", func() bool { return b.prefix(keys) == 5 })
		for i := range 30 * 3600 {
			time.Sleep(time.Second)
			if i%3600 == 0 { // a use is to be told of
				b.prefix(keys)
			}
			if !b.Stats().Offers {
				t.Fatalf("nothing is offered: %s", b.log)
			}
		}
		b.mustRead(records...)
		if n := b.Stats().ListsWaiting; n > 1 {
			t.Errorf("%d lists of uses wait for a bucket that does not take them", n)
		}
	})
}

// Each write ends once, whatever the bucket does to it; what has failed is written when it is tried again, and nothing
// that is found cannot be read.
func TestWritesUnderFaults(t *testing.T) {
	for _, do := range []s3proxy.Effect{
		{Status: 500, Code: "InternalError"}, {Status: 503, Code: "SlowDown"}, {Reset: true}, {Lost: true}, {Delay: time.Hour}, {Page: 502},
		{Status: 507, Code: "InsufficientStorage"}, {Status: 403, Code: "AccessDenied"}, {Status: 404, Code: "NoSuchBucket"},
	} {
		for _, count := range []int64{1, 2, 3, 1000} {
			inCloud(t, func(t *testing.T, c *cloud) {
				n := c.open(nil)
				n.ready()
				records, keys := n.chain(1, 5)
				c.proxy.Play(s3proxy.Clause{On: s3proxy.Put, For: count, Do: do})
				began := time.Now()
				errs := n.write(records...)
				if d := time.Since(began); d > 5*time.Minute {
					t.Errorf("%+v, %d times: it took %v", do, count, d)
				}
				for _, err := range errs {
					if err != nil && !errors.Is(err, store.ErrIO) && !errors.Is(err, store.ErrBusy) {
						t.Errorf("%+v, %d times: %v", do, count, err)
					}
				}
				c.proxy.Stop()
				time.Sleep(2 * time.Minute)
				n.mustWrite(records...)
				if got := n.prefix(keys); got != 5 {
					t.Errorf("%+v, %d times: %d blocks", do, count, got)
				}
				n.mustRead(records...)
			})
		}
	}
}

// Close finishes the writes that were accepted.
func TestCloseFinishesWrites(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		a := c.open(nil)
		a.ready()
		records, keys := a.chain(1, 5)
		a.mustWrite(records[0]) // the next list waits
		c.proxy.Play(s3proxy.Clause{On: s3proxy.Put, Do: s3proxy.Effect{Delay: time.Second}})
		done := make(chan []error)
		go func() { done <- a.write(records...) }()
		time.Sleep(time.Millisecond)
		began := time.Now()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("Close took %v", d)
		}
		for _, err := range <-done {
			if err != nil {
				t.Error(err)
			}
		}
		c.proxy.Stop()
		b := c.open(nil)
		b.until("what was written before the stop is not found", func() bool { return b.prefix(keys) == 5 })
		b.mustRead(records...)
	})
}

// A bucket that hangs holds a stop up for a bounded time.
func TestCloseWithABucketThatHangs(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n := c.open(nil)
		n.ready()
		records, keys := n.chain(1, 5)
		n.mustWrite(records[:2]...)
		c.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Delay: time.Hour}})
		done := make(chan []error, 2)
		go func() { done <- n.write(records...) }()
		go func() { done <- n.read(records[:2]...) }()
		time.Sleep(time.Millisecond)
		began := time.Now()
		err := n.Close()
		if d := time.Since(began); !errors.Is(err, store.ErrTimeout) || d > 25*time.Second {
			t.Errorf("Close took %v: %v", d, err)
		}
		for range 2 {
			for _, err := range <-done {
				if err != nil && !errors.Is(err, store.ErrClosed) && !errors.Is(err, store.ErrIO) && !errors.Is(err, store.ErrTimeout) {
					t.Error(err)
				}
			}
		}
		if n.prefix(keys) != 0 || n.Close() != err {
			t.Error("a closed tier finds records, or ends twice")
		}
	})
}

// Close does not wait for the time at which the next list is due.
func TestCloseTellsOfObjectsAtOnce(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		a := c.open(func(o *Options) { o.ListPause, o.CloseTimeout = time.Minute, time.Second })
		a.ready()
		records, keys := a.chain(1, 5)
		a.mustWrite(records[0]) // the next list waits
		done := make(chan []error, 1)
		go func() { done <- a.write(records...) }()
		time.Sleep(5 * time.Second)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		for _, err := range <-done {
			if err != nil {
				t.Error(err)
			}
		}
		b := c.open(nil)
		b.until("what was written before the stop is not found", func() bool { return b.prefix(keys) == 5 })
	})
}

// The lease of a steward that closes while its bucket hangs is left after a moment: the disk has yet to close.
func TestStewardClosesWithABucketThatHangs(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n := c.open(func(o *Options) { o.CloseTimeout = time.Second })
		n.ready()
		n.until("it is not steward", func() bool { return n.Stats().Steward })
		c.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Delay: time.Hour}})
		records, _ := n.chain(1, 5)
		done := make(chan []error, 1)
		go func() { done <- n.write(records...) }()
		time.Sleep(time.Millisecond)
		began := time.Now()
		if err := n.Close(); !errors.Is(err, store.ErrTimeout) {
			t.Error(err)
		}
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("Close took %v", d)
		}
		<-done
	})
}

// Another process has the writer id of this one: what it wrote stays.
func TestNamesThatAreTaken(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n := c.open(nil)
		n.ready()
		w := n.outbox.Writer()
		for i := range uint64(3) {
			b := []byte("another's")
			name := format.DataName(format.NewObjectID(w, i+1)).String()
			if _, err := n.bucket.Put(t.Context(), name, bytes.NewReader(b), int64(len(b)), bucket.Condition{}); err != nil {
				t.Fatal(err)
			}
		}
		records, _ := n.chain(1, 5)
		n.mustWrite(records...)
		n.mustRead(records...)
		if n.outbox.Writer() == w {
			t.Error("the writer has not changed")
		}
	})
}

// empty deletes all that a bucket has.
func empty(t *testing.T, n *node) {
	t.Helper()
	all, err := n.bucket.List(t.Context(), format.Root, "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range all {
		names = append(names, m.Name)
	}
	if err := n.bucket.Delete(t.Context(), names); err != nil {
		t.Fatal(err)
	}
}

// An emptied bucket is a new one: nothing is offered of the old, and it is told.
func TestEmptiedBucket(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		var emptied atomic.Int32
		n, records, keys := c.filled(func(o *Options) { o.Emptied = func() { emptied.Add(1) } }, 5)
		time.Sleep(time.Minute)
		empty(t, n)
		n.until("the node does not notice", func() bool { time.Sleep(time.Minute); return emptied.Load() > 0 || n.t.Failed() })
		if got := n.prefix(keys); got != 0 {
			t.Errorf("%d blocks are offered", got)
		}
		n.ready()
		n.until("nothing can be written", func() bool { return n.write(records...)[0] == nil })
		n.mustRead(records...)
	})
}

// A node that misses an object, that has lists nobody takes, or that loses the lease looks whether the bucket is
// another one by now. It does not wait until that is due.
func TestEmptiedBucketIsNoticedByItsUse(t *testing.T) {
	for name, use := range map[string]func(n *node, known, other []store.Record){
		"a read":  func(n *node, known, _ []store.Record) { n.read(known...) },
		"a write": func(n *node, _, other []store.Record) { n.write(other...) },
	} {
		t.Run(name, func(t *testing.T) {
			inCloud(t, func(t *testing.T, c *cloud) {
				a, b := c.open(nil), c.open(nil)
				a.ready()
				b.ready()
				known, keys := a.chain(1, 5)
				other, _ := a.chain(2, 5)
				a.mustWrite(known...)
				b.until("it is not found", func() bool { return b.prefix(keys) == 5 })
				old, _ := b.follower.Bucket()
				empty(t, a)
				third := c.open(nil) // the first of the new bucket
				third.ready()
				time.Sleep(time.Minute)
				steward := a
				if b.steward.Stats().Terms > 0 {
					steward = b
				}
				if now, _ := steward.follower.Bucket(); now == old {
					t.Errorf("the steward does not notice; log: %s", steward.log)
				}
				use(b, known, other)
				time.Sleep(time.Minute)
				if now, _ := b.follower.Bucket(); now == old {
					t.Errorf("it is not noticed; log: %s", b.log)
				}
			})
		})
	}
}

// What is missing is a miss on this node at once, and on all others soon.
func TestLostObjectLeavesAllNodes(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		a, b := c.open(nil), c.open(nil)
		a.ready()
		b.ready()
		records, keys := a.chain(1, 5)
		a.mustWrite(records...)
		b.until("it is not found", func() bool { return b.prefix(keys) == 5 })
		p, _ := a.catalog.Locate(records[0].ID, payloadBytes)
		if err := a.bucket.Delete(t.Context(), []string{format.DataName(p.Object).String()}); err != nil {
			t.Fatal(err)
		}
		if errs := b.read(records[2]); !errors.Is(errs[0], store.ErrGone) {
			t.Error(errs[0])
		}
		if b.prefix(keys) != 0 {
			t.Error("it is offered by the node that missed it")
		}
		a.until("it is offered by another node", func() bool { return a.prefix(keys) == 0 })
	})
}

// A steward believes no report of damage: it reads the records, and removes the object for all if one is damaged.
func TestDamagedObjectLeavesAllNodes(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		compressed := func(o *Options) { o.Compress = true }
		a, records, keys := c.filled(compressed, 5)
		b := c.open(compressed)
		b.until("it is not found", func() bool { return b.prefix(keys) == 5 })
		p, _ := a.catalog.Locate(records[0].ID, payloadBytes)
		b.outbox.Lose(p.Object, format.CauseDamaged)
		time.Sleep(time.Minute)
		if a.prefix(keys) != 5 || a.steward.Stats().Removed+b.steward.Stats().Removed != 0 {
			t.Error("an object that is intact was removed")
		}
		flip(t, b.Tier, records[2].ID, payloadBytes)
		if errs := b.read(records[2]); !errors.Is(errs[0], store.ErrCorrupt) {
			t.Error(errs[0])
		}
		a.until("it is offered by another node", func() bool { return a.prefix(keys) == 0 })
	})
}

// What was moved to an archive class is a miss for an hour, and stays in the bucket: somebody may restore it.
func TestArchivedObjectIsAMissUntilItIsRestored(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n, records, keys := c.filled(nil, 5)
		p, _ := n.catalog.Locate(records[0].ID, payloadBytes)
		c.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Name: "prefix/" + format.DataPrefix + "**", Do: s3proxy.Effect{Status: 403, Code: "InvalidObjectState"}})
		if errs := n.read(records[2]); !errors.Is(errs[0], store.ErrGone) {
			t.Error(errs[0])
		}
		if !n.Offers() || n.prefix(keys) != 0 {
			t.Errorf("offers %t, %d blocks", n.Offers(), n.prefix(keys))
		}
		if !strings.Contains(n.log.String(), "archive class") {
			t.Errorf("no remedy: %s", n.log)
		}
		time.Sleep(forgiveAfter / 2)
		if i, known := n.catalog.Object(p.Object); !known || i.State != catalog.StateLost {
			t.Errorf("%+v %t", i, known)
		}
		c.proxy.Stop()
		time.Sleep(forgiveAfter)
		if n.prefix(keys) != 5 {
			t.Errorf("%d blocks after it was restored", n.prefix(keys))
		}
		n.mustRead(records...)
	})
}

// A manifest in an archive class counts as lost: it would keep routers from all other namespaces until it is restored.
func TestArchivedManifestIsLost(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n, _, _ := c.filled(nil, 1)
		clear(n.namespaces.known)
		c.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Name: "prefix/kv1/ns/**", Do: s3proxy.Effect{Status: 403, Code: "InvalidObjectState"}})
		if _, err := n.Manifest(t.Context(), n.ns); !errors.Is(err, store.ErrGone) {
			t.Error(err)
		}
		c.proxy.Stop()
		if m, err := n.Manifest(t.Context(), n.ns); err != nil || len(m) == 0 {
			t.Errorf("once it is restored: %q, %v", m, err)
		}
	})
}

// The steward keeps the bucket within its cap: the least recently used goes, and bytes follow after the grace.
func TestBucketStaysWithinItsCap(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		const chains, blocks = 12, 10
		n := c.open(func(o *Options) {
			o.ObjectBytes, o.MaxBytes = 1<<20, chains*(blocks*format.SlotBytes(payloadBytes)+1000)
			o.WriteBytes = 1 << 20
		})
		n.ready()
		for chain := range chains {
			records, _ := n.chain(chain, blocks)
			n.until("the bucket stays full", func() bool {
				errs := n.write(records...)
				return !slices.ContainsFunc(errs, func(err error) bool { return err != nil })
			})
			time.Sleep(61 * time.Minute)
		}
		_, first := n.chain(0, blocks)
		_, last := n.chain(chains-1, blocks)
		if n.prefix(first) != 0 || n.prefix(last) != blocks {
			t.Errorf("%d blocks of the first chain, %d of the last", n.prefix(first), n.prefix(last))
		}
		if s := n.Stats(); s.ObjectBytes > n.o.MaxBytes*9/10 || s.LeavingObjects != 0 {
			t.Errorf("%d bytes of %d, %d objects are leaving", s.ObjectBytes, n.o.MaxBytes, s.LeavingObjects)
		}
		objects, err := n.bucket.List(t.Context(), format.DataPrefix, "", 1000)
		if err != nil || int64(len(objects)) != n.Stats().Objects {
			t.Errorf("%d objects are in the bucket, %d are known: %v", len(objects), n.Stats().Objects, err)
		}
	})
}

// A steward that cannot read what others have listed does not take their objects for orphans.
func TestStewardThatCannotReadListsDeletesNoObjects(t *testing.T) {
	ring, err := seal.New(seal.Key([]byte("0123456789abcdefghijklmnopqrstuv")))
	if err != nil {
		t.Fatal(err)
	}
	inCloud(t, func(t *testing.T, c *cloud) {
		writer, records, keys := c.filled(nil, 5)
		time.Sleep(time.Minute)
		_ = writer.Close()
		other := c.open(func(o *Options) { o.Ring = ring })
		other.ready()
		time.Sleep(2 * time.Hour)
		if s := other.Stats(); !s.Steward {
			t.Error("it is not steward")
		}
		reader := c.open(nil)
		reader.until("the records have gone", func() bool { return reader.prefix(keys) == len(keys) })
		reader.mustRead(records...)
		_ = reader.Close()
		time.Sleep(26 * time.Hour)
		left, err := other.bucket.List(t.Context(), format.DataPrefix, "", 10)
		if err != nil || len(left) != 1 {
			t.Errorf("%d data objects are left: %v", len(left), err)
		}
		if !strings.Contains(other.log.String(), "what no list has is not looked for") {
			t.Errorf("nobody is told: %s", other.log)
		}
		// Where all nodes have the key file the log is folded all the same.
		if s := other.steward.Stats(); s.Folds == 0 {
			t.Errorf("nothing was folded: %+v", s)
		}
	})
}
