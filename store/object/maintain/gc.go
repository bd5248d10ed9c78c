package maintain

import (
	"context"
	"errors"
	"time"

	"github.com/kvconn/kvconn/store/object/collect"
	"github.com/kvconn/kvconn/store/object/steward"
)

// GCOptions say what [GC] does.
type GCOptions struct {
	// MaxBytes is the cap of the bucket. Default: none.
	MaxBytes int64
	// MaxAge is how long an object may go without a use. Default: indefinitely.
	MaxAge time.Duration
	// Progress, if not nil, is called from time to time with the objects looked at, removed or deleted.
	Progress func(done, total int64)
}

// GCReport says what [GC] did.
type GCReport struct {
	// Bucket is its URL.
	Bucket string `json:"bucket"`
	// Objects and Bytes are what the bucket offers now.
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"bytes"`
	// LeavingObjects and LeavingBytes are removed, and will be deleted once the grace has passed, by the steward
	// or the next GC.
	LeavingObjects int64 `json:"leaving_objects"`
	LeavingBytes   int64 `json:"leaving_bytes"`
	collect.Stats
}

// GC collects once what nodes collect as they run: it removes what is beyond the cap or the age, deletes what was
// removed before the grace, and what is old and in no list. It needs the lease for that: the error wraps a
// [steward.HeldError] if a node holds it.
func GC(ctx context.Context, o Options, g GCOptions) (r GCReport, err error) {
	options := collect.Options{MaxBytes: g.MaxBytes, MaxAge: g.MaxAge, Progress: g.Progress, Logger: o.Logger}
	options.EnsureDefaults()
	if err := options.Validate(); err != nil {
		return r, err
	}
	n, err := open(ctx, o, true)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	r.Bucket = n.bucket.String()
	options.Whole = n.follower.Whole
	err = n.steward.Once(ctx, func(ctx context.Context, t steward.Term) error {
		c, err := collect.New(n.bucket, n.catalog, t, n.bucket, options)
		if err != nil {
			return err
		}
		if err = c.Pass(ctx); err == nil {
			_, err = c.Orphans(ctx)
		}
		r.Stats = c.Stats()
		return err
	})
	if err != nil {
		return r, explain(n.bucket, err)
	}
	s := n.catalog.Stats()
	r.Objects, r.Bytes, r.LeavingObjects, r.LeavingBytes = s.Objects, s.Bytes, s.LeavingObjects, s.LeavingBytes
	return r, nil
}
