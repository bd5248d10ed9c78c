// Package upload offers the records of the first tier to the object tier: it follows the first
// tier's events, keeps a bounded queue of identities, reads records when an object's worth of them has
// gathered or the oldest has waited long enough, and hands them over as one object.
//
// Nothing of it is on the path of a save: a record is on disk before its event comes, and all that a
// slow bucket does is fill the queue. What the queue has no room for stays on disk, and is offered
// again at the next use or start.
package upload

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Source is the first tier, as the uploader sees it.
type Source interface {
	store.Events
	store.Exporter
	// Namespaces are those that the tier has records of, with their manifests.
	Namespaces() []store.NamespaceInfo
	PayloadBytes(ns connector.NamespaceDigest, shard connector.Shard) int
	Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool)
	Speed() store.Speed
}

// Target is the object tier, as the uploader sees it. The ops of one call of Write are of one
// namespace and shard, stretches of consecutive blocks one after the other, and belong in one object.
type Target interface {
	store.Writer
	OpenNamespace(m *connector.Manifest) (connector.NamespaceDigest, error)
	CloseNamespace(ns connector.NamespaceDigest)
	// Has sets at[i] where the tier knows that the bucket has the record of keys[i], whether it can be read now or
	// not. It leaves the rest of at as it is.
	Has(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool)
	// Writable reports whether the bucket takes anything now: else nothing is read to be uploaded.
	Writable() bool
	Usage() store.Usage
	// Ready waits until the tier knows what is in the bucket, so that Has says what need not be
	// uploaded. It fails when ctx ends or the tier closes.
	Ready(ctx context.Context) error
}

// Uploader moves records from the first tier to the object tier. It is a [store.UseListener], and safe for
// concurrent use.
type Uploader struct {
	o      Options
	source Source
	target Target
	start  time.Time
	memory memory

	ctx      context.Context // of reads; ends when Close gives up
	cancel   context.CancelFunc
	intake   context.CancelFunc // ends what fills the queue
	intaking sync.WaitGroup
	uses     chan use
	usedKeys atomic.Int64 // of uses
	missed   atomic.Bool  // records were dropped: uses offer them again

	wake    chan struct{} // has a token when the manager has to look
	managed chan struct{} // closed when it has ended
	sending sync.WaitGroup

	policies policies

	mu       sync.Mutex
	q        queue
	flying   int // objects in memory
	limit    int // of flying: less than Options.Uploads after the bucket has throttled
	credit   int // objects uploaded since the limit changed
	failures int // objects in a row that failed
	resume   time.Time
	full     bool
	down     bool // the target takes nothing
	closing  bool
	session  context.CancelFunc // ends the present subscription
	toClose  []connector.NamespaceDigest
	count    Counters
}

var _ store.UseListener = (*Uploader)(nil)

// Start starts to upload what source has and what comes to it, and returns at once. Both tiers have
// to be open until [Uploader.Close] has returned.
func Start(source Source, target Target, o Options) (*Uploader, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	u := &Uploader{
		o: o, source: source, target: target, start: time.Now(), limit: o.Uploads,
		uses: make(chan use, useCalls), wake: make(chan struct{}, 1), managed: make(chan struct{}),
	}
	u.q.init(&u.o)
	u.memory.bufferBytes = int(o.ObjectBytes)
	u.policies.init(source, o.Policy)
	u.ctx, u.cancel = context.WithCancel(context.Background())
	intake, cancel := context.WithCancel(u.ctx)
	u.intake = cancel
	u.intaking.Go(func() { u.follow(intake) })
	u.intaking.Go(func() { u.takeUses(intake) })
	go u.manage()
	return u, nil
}

// Close uploads what is in the queue, until ctx ends: what is left is found at the next start. It
// returns [store.ErrTimeout] if something is left. Objects that the target still has when Close
// returns keep their memory until the target reports them.
func (u *Uploader) Close(ctx context.Context) error {
	u.intake()
	u.intaking.Wait()
	u.mu.Lock()
	u.closing = true
	u.mu.Unlock()
	u.look()
	select {
	case <-u.managed:
	case <-ctx.Done():
	}
	u.cancel()
	<-u.managed
	u.sending.Wait()
	u.closeNamespaces()
	u.mu.Lock()
	left, flying := u.q.records+u.count.abandoned, u.flying
	u.mu.Unlock()
	u.memory.close()
	if left > 0 || flying > 0 {
		return fmt.Errorf("upload of records at the stop: %d records and %d objects are left: %w", left, flying, store.ErrTimeout)
	}
	return nil
}

// OfferAll offers everything that the first tier has once more: for a bucket that was emptied.
func (u *Uploader) OfferAll() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.session != nil {
		u.session()
	}
}

// look makes the manager look at the queue.
func (u *Uploader) look() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// now is the time since the start in the queue's ticks.
func (u *Uploader) now() uint32 { return ticks(time.Since(u.start)) }
