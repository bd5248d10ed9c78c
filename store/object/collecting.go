package object

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/collect"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/steward"
)

const (
	// collectEvery is how often the steward looks for what is to be removed, orphansEvery for what is in no list,
	// and orphansFirst when it does so first.
	collectEvery = time.Minute
	orphansEvery = 24 * time.Hour
	orphansFirst = time.Hour
)

// collecting has the steward of the bucket keep it within its cap. Its methods are called while this node holds the
// lease, from one goroutine.
type collecting struct {
	steward.Term // of the present call, for the collector

	t         *Tier
	collector *collect.Collector
	passed    time.Time // the last pass
	orphans   time.Time // the next look for orphans
	said      string
}

var (
	_ steward.Collector = (*collecting)(nil)
	_ collect.Steward   = (*collecting)(nil)
)

func newCollecting(t *Tier) (*collecting, error) {
	o := collect.Options{MaxBytes: t.o.MaxBytes, MaxAge: t.o.MaxAge, Grace: t.o.Grace, Whole: t.follower.Whole, Logger: t.o.Logger}
	if o.MaxBytes == NoBytes {
		o.MaxBytes = 0
	}
	if o.MaxAge == NoAge {
		o.MaxAge = 0
	}
	c := &collecting{t: t, orphans: time.Now().Add(orphansFirst)}
	var err error
	c.collector, err = collect.New(t.bucket, t.catalog, c, bucketClock{t}, o)
	return c, err
}

// Collect implements [steward.Collector].
func (c *collecting) Collect(ctx context.Context, term steward.Term) error {
	if time.Since(c.passed) < collectEvery {
		return nil
	}
	c.Term = term
	err := c.collector.Pass(ctx)
	if err == nil && time.Now().After(c.orphans) {
		_, err = c.collector.Orphans(ctx)
		if errors.Is(err, follow.ErrUnread) {
			c.t.o.Logger.Warn("object tier: what no list has is not looked for", slog.Any("error", err),
				slog.String("remedy", "give all nodes the same key file and program; kvconnd fsck mends lists that are damaged"))
			err = nil
		}
		if err == nil {
			c.orphans = time.Now().Add(orphansEvery)
		}
	}
	c.passed = time.Now()
	if err == nil || ctx.Err() != nil {
		c.said = ""
		return err
	}
	if text := err.Error(); text != c.said {
		c.said = text
		c.t.o.Logger.Warn("object tier: the bucket cannot be kept within its bounds; tried again", slog.Any("error", err), slog.String("remedy", bucket.Remedy(err)))
	}
	return err
}

// bucketClock is the clock that ages are told by: the bucket's, or that of a test.
type bucketClock struct{ *Tier }

// Now implements [collect.Clock].
func (c bucketClock) Now() time.Time {
	if c.o.now != nil {
		return c.o.now()
	}
	return c.bucket.Now()
}

// Skew implements [collect.Clock].
func (c bucketClock) Skew() time.Duration { return c.bucket.Skew() }
