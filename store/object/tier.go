package object

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/codec"
	"github.com/kvconn/kvconn/store/object/fetch"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/object/outbox"
	"github.com/kvconn/kvconn/store/object/steward"
	"github.com/kvconn/kvconn/store/record"
)

// Tier is the object tier. It is safe for concurrent use. Nothing but reads, writes and probes waits for the
// bucket.
type Tier struct {
	o       Options
	bucket  *bucket.Bucket
	catalog *catalog.Catalog
	fetcher *fetch.Fetcher
	planes  *codec.Codec
	builder record.Builder

	namespaces namespaces
	writes     writes
	leases     leases
	uses       uses
	probed     probed
	losses     losses
	follower   *follow.Follower
	outbox     *outbox.Outbox
	steward    *steward.Steward
	lister     lister
	depths     depths
	readOnly   atomic.Bool // the bucket cannot be written

	closed  atomic.Bool
	closing chan struct{}   // is closed with closed
	ctx     context.Context // of all goroutines
	cancel  context.CancelFunc
	running sync.WaitGroup
	close   func() error
}

var (
	_ store.Tier        = (*Tier)(nil)
	_ store.UseListener = (*Tier)(nil)
	_ store.BatchReader = (*Tier)(nil)
)

// Open returns the tier of a bucket, and does not wait for it: while it cannot be reached the tier has nothing,
// takes nothing, and tries again.
func Open(o Options) (*Tier, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	t := &Tier{o: o, closing: make(chan struct{})}
	t.losses.t = t
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.close = sync.OnceValue(t.shut)
	if err := t.make(); err != nil {
		t.cancel()
		return nil, fmt.Errorf("open object tier: %w", err)
	}
	t.running.Go(t.work)
	t.running.Go(t.list)
	t.running.Go(func() { t.leases.expire(t.ctx, t.catalog) })
	t.running.Go(t.takeUses)
	t.running.Go(t.losses.forgive)
	return t, nil
}

// make makes the parts of the tier.
func (t *Tier) make() (err error) {
	o := &t.o
	t.namespaces.init()
	t.writes.init(o)
	t.leases.init(o.MaxLeases)
	t.uses.ready, t.lister.more = make(chan struct{}, 1), make(chan struct{}, 1)
	if t.bucket, err = bucket.Open(o.Bucket); err != nil {
		return err
	}
	if t.catalog, err = catalog.New(catalog.Options{
		IndexBytes: o.IndexBytes, EventBytes: o.EventBytes, Grace: o.Grace, Now: t.now, Readable: t.readable,
	}); err != nil {
		return err
	}
	if t.planes, err = codec.New(o.Connections); err == nil {
		t.fetcher, err = fetch.New(fetch.Options{
			Bucket: t.bucket, Catalog: &t.losses, Ring: o.Ring, Codec: t.planes, Name: o.Name, InFlightBytes: o.ReadInFlightBytes,
			Connections: o.Connections, Logger: o.Logger,
		})
	}
	if err == nil {
		err = t.makeLinks()
	}
	if err != nil {
		return errors.Join(err, t.catalog.Close())
	}
	if t.builder.Ring = o.Ring; o.Compress {
		t.builder.Chooser = codec.NewChooser(t.planes)
	}
	return nil
}

// makeLinks makes what ties this node to the others.
func (t *Tier) makeLinks() (err error) {
	o := &t.o
	t.outbox = outbox.New(outbox.Options{
		Client: t.bucket, Ring: o.Ring, Uses: t.catalog.Uses, Stuck: t.stuck, Logger: o.Logger,
	})
	if t.follower, err = follow.New(follow.Options{
		Client: t.bucket, Catalog: t.catalog, Outbox: t.outbox, Ring: o.Ring, PollMax: o.PollMax, Now: t.clock,
		Emptied: o.Emptied, Logger: o.Logger,
	}); err != nil {
		return err
	}
	c, err := newCollecting(t)
	if err != nil {
		return err
	}
	t.steward, err = steward.New(steward.Options{
		Client: t.bucket, Follower: t.follower, Ring: o.Ring, Node: o.Node, Now: t.clock, Codec: t.planes, Collector: c, Logger: o.Logger,
	})
	return err
}

// stuck looks why nobody takes this node's lists: there may be no steward, or the bucket is another one by now.
func (t *Tier) stuck() {
	t.steward.Look()
	t.follower.Suspect()
}

// Name implements [store.Level], as do the methods up to Usage.
func (t *Tier) Name() string { return t.o.Name }

// Present sets at[i] where a record is offered: nothing is while the bucket does not work, or this node has not heard
// of it for long.
func (t *Tier) Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	if t.Offers() {
		t.catalog.Present(ns, shard, keys, at)
	}
}

// Has sets at[i] where this node knows of a record in the bucket, whether it can be read now or not: what is to be
// uploaded is chosen by it.
func (t *Tier) Has(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	t.catalog.Present(ns, shard, keys, at)
}

// Offers reports whether records are found: the bucket works, and this node has heard of it lately. Events go on
// while it reports false.
func (t *Tier) Offers() bool {
	return !t.closed.Load() && t.bucket.Available() && time.Since(t.follower.Good()) < t.o.MaxStale
}

// Speed is that of fetching.
func (t *Tier) Speed() store.Speed { return t.fetcher.Speed() }

// Usage counts what is offered in the bucket, whoever wrote it.
func (t *Tier) Usage() store.Usage {
	c := t.catalog.Stats()
	return store.Usage{
		Records: c.Records, UsedBytes: c.Bytes, MaxBytes: t.o.MaxBytes, ReachableBytes: t.o.MaxBytes, Hits: t.fetcher.Stats().Records,
	}
}

// BatchBytes is as long as a range: one request.
func (t *Tier) BatchBytes() int { return 8 << 20 }

// Epoch implements [store.Events], as do Subscribe and SubscribeAfter: the events are those of all nodes.
func (t *Tier) Epoch() uint64 { return t.catalog.Epoch() }

// Subscribe follows what is offered in the bucket.
func (t *Tier) Subscribe(ctx context.Context) (store.Subscription, error) {
	if t.closed.Load() {
		return nil, store.ErrClosed
	}
	return t.catalog.Subscribe(ctx)
}

// SubscribeAfter goes on after an event.
func (t *Tier) SubscribeAfter(epoch, seq uint64) (store.Subscription, error) {
	if t.closed.Load() {
		return nil, store.ErrClosed
	}
	return t.catalog.SubscribeAfter(epoch, seq)
}

// clock is the bucket's, or this node's before the first answer.
func (t *Tier) clock() time.Time {
	if t.o.now != nil {
		return t.o.now()
	}
	if now := t.bucket.Now(); !now.IsZero() {
		return now
	}
	return time.Now()
}

func (t *Tier) now() format.Seconds { return format.SecondsOf(t.clock()) }

// readable reports whether this node can read records with these features.
func (t *Tier) readable(needs uint16, codecID uint8) bool {
	n := record.Needs(needs)
	sealed := n&record.NeedsDecryption != 0
	return n.Check(record.NeedsDecryption|record.NeedsDecoding) == nil && codecID <= codec.Planes && sealed == (t.o.Ring != nil)
}

// Close ends the tier. Writes that were accepted are finished first, if the bucket takes them in time.
func (t *Tier) Close() error { return t.close() }

func (t *Tier) shut() error {
	t.closed.Store(true)
	close(t.closing)
	err := t.writes.drain(t.o.CloseTimeout)
	t.cancel()
	t.fetcher.Close()
	t.writes.wait()
	t.running.Wait()
	t.bucket.Close()
	return errors.Join(err, t.catalog.Close())
}
