// Package collect keeps a bucket within its cap and free of what nobody uses: the steward's part of the
// object tier's life cycle, and what the command gc does once.
//
// An object that is to go is first removed by a line in the log, and its bytes are deleted when the grace
// has passed since then. No node offers it by then, and no load reads it. So deletion needs no agreement:
// whoever deletes what was removed long ago does no harm, twice or late, with or without the lease.
package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/format"
)

// ErrClock says that nothing is collected, since the clocks of bucket and node disagree: what is old by
// one of them might not be.
var ErrClock = errors.New("the clocks of the bucket and of this node differ too much to say what is old")

// Catalog is what the collector asks of the catalog.
type Catalog interface {
	Coldest(bytes int64) []format.ObjectID
	Unused(before format.Seconds) []format.ObjectID
	Removed(before format.Seconds) []format.ObjectID
	Object(id format.ObjectID) (catalog.Info, bool)
	Stats() catalog.Stats
}

// Steward is what the collector asks of the steward that it works for.
type Steward interface {
	// Merge puts all lists of writers that wait into the log, together with removals and deletions, and
	// follows the log to its end: the catalog knows all of it when Merge returns. It fails if this node
	// does not hold the lease.
	Merge(ctx context.Context, removed []format.Removal, deleted []format.ObjectID) error
	// Holds asks the bucket whether this node holds the lease, and fails if it does not.
	Holds(ctx context.Context) error
}

// Clock is the bucket's clock, as [bucket.Bucket] has it.
type Clock interface {
	// Now is the time, zero while it is not known.
	Now() time.Time
	// Skew is how far it is ahead of this node's.
	Skew() time.Duration
}

// Options configure a [Collector]. The zero value of a field means its default.
type Options struct {
	// MaxBytes is the cap of the bucket. Default: none.
	MaxBytes int64
	// MaxAge is how long an object may go without a use. Default: indefinitely.
	MaxAge time.Duration
	// Grace is the time from an object's removal to the deletion of its bytes. Default 15 min: a node
	// offers nothing when its last poll is older than 5 min, an offer and its load take less than 5, and
	// 5 are left for a log object that comes late.
	Grace time.Duration
	// OrphanAge is how old an object must be that is in no list. Default 24 h: a writer puts its list
	// within seconds, or again and again for as long as it lives.
	OrphanAge time.Duration
	// Whole fails where other nodes may know of objects that the catalog does not have: they would be taken for
	// orphans. Default: it never does.
	Whole func() error
	// Progress, if not nil, is called with the objects that were looked at, removed or deleted, of those that
	// are to be: from one goroutine at a time.
	Progress func(done, total int64)
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

const (
	// At startPercent of the cap objects are removed until stopPercent are left: in stretches, since the
	// coldest are found by looking at all.
	startPercent, stopPercent = 90, 85
	// maxSkew is what the clocks may differ by: S3 refuses requests where they differ by more.
	maxSkew = 15 * time.Minute
	// mergeTime bounds a merge with removals. A log object that came minutes after the time that is in
	// it would take the readers of other nodes their grace.
	mergeTime = time.Minute
	// mergeObjects are removed or deleted by one log object: 240 KB of its 8 MiB.
	mergeObjects = 10_000
	// deleteObjects are deleted by one request.
	deleteObjects = 1000
)

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Grace = cmp.Or(o.Grace, 15*time.Minute)
	o.OrphanAge = cmp.Or(o.OrphanAge, 24*time.Hour)
	if o.Whole == nil {
		o.Whole = func() error { return nil }
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.MaxBytes < 0:
		return fmt.Errorf("collect options: MaxBytes %d is negative", o.MaxBytes)
	case o.MaxAge < 0 || o.MaxAge > 0 && o.MaxAge < time.Minute:
		return fmt.Errorf("collect options: MaxAge %v: at least a minute", o.MaxAge)
	case o.Grace < 0 || o.Grace%time.Second != 0:
		return fmt.Errorf("collect options: Grace %v: whole seconds", o.Grace)
	case o.OrphanAge < 0:
		return fmt.Errorf("collect options: OrphanAge %v is negative", o.OrphanAge)
	}
	return nil
}

// Collector collects. The steward calls Pass about once a minute, and Orphans about once a day. Its methods may be
// called from any goroutine; one pass runs at a time.
type Collector struct {
	o       Options
	client  bucket.Client
	catalog Catalog
	steward Steward
	clock   Clock

	pass        sync.Mutex // held for a pass, guards done and total
	done, total int64

	mu    sync.Mutex
	stats Stats
}

// New returns a collector for a bucket.
func New(client bucket.Client, c Catalog, s Steward, clock Clock, o Options) (*Collector, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Collector{o: o, client: client, catalog: c, steward: s, clock: clock}, nil
}

// now is the bucket's time, if it can be relied on.
func (c *Collector) now() (format.Seconds, error) {
	now, skew := format.SecondsOf(c.clock.Now()), c.clock.Skew().Abs()
	switch {
	case now == 0:
		return 0, errors.New("collect: the bucket has not answered yet")
	case skew > maxSkew:
		return 0, fmt.Errorf("collect: %w: by %v", ErrClock, skew)
	}
	return now, nil
}

// progress tells of more objects that are done, or to be done.
func (c *Collector) progress(done, more int64) {
	c.done, c.total = c.done+done, c.total+more
	if c.o.Progress != nil {
		c.o.Progress(min(c.done, c.total), c.total)
	}
}
