package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/upload"
)

// ObjectOptions are those of the object tier, and of what is uploaded to it.
type ObjectOptions struct {
	Tier   object.Options
	Upload upload.Options
	Prices Prices
}

// Prices are what a provider asks, in dollars: for a million requests that write or list, for a million that
// read, and for a GB that is kept for a month.
type Prices struct{ Write, Read, GBMonth float64 }

// maxDrain bounds the part of a stop that uploads get: the store needs the rest. What is left is found at
// the next start. maxClose bounds what the tier itself waits after that.
const maxDrain, maxClose = 10 * time.Second, time.Second

// drainFor and closeFor are the parts of a stop that a bucket that hangs may take.
func drainFor(stop time.Duration) time.Duration { return min(maxDrain, stop*2/5) }
func closeFor(stop time.Duration) time.Duration { return min(maxClose, stop/10) }

// openChain puts the object tier after the disk, if there is a bucket, and begins to fill it. The bucket
// need not be reachable.
func (d *daemon) openChain() (*store.Chain, error) {
	if d.opts.Object == nil {
		return store.NewChain(d.store), nil
	}
	to, uo := d.opts.Object.Tier, d.opts.Object.Upload
	to.Ring, to.CloseTimeout = d.opts.Ring, closeFor(d.opts.StopTimeout)
	to.Logger, to.Bucket.Logger, uo.Logger = d.opts.Logger, d.opts.Logger, d.opts.Logger
	var uploads atomic.Pointer[upload.Uploader]
	to.Emptied = func() {
		if u := uploads.Load(); u != nil {
			u.OfferAll()
		}
	}
	t, err := object.Open(to)
	if err != nil {
		return nil, fmt.Errorf("object tier: %w", err)
	}
	uo.Throttled = func(err error) bool { return errors.Is(err, bucket.ErrThrottled) }
	u, err := upload.Start(d.store, t, uo)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("uploads to the object tier: %w", err), t.Close())
	}
	uploads.Store(u)
	d.object, d.uploads = t, u
	chain := store.NewChain(d.store, t)
	chain.Listen(u)
	return chain, nil
}

// closeTiers closes the tiers, the disk last. A bucket that does not work is no reason for a stop to fail: what
// was not uploaded is on disk.
func (d *daemon) closeTiers() error {
	if d.object == nil {
		return d.chain.Close()
	}
	if err := d.object.Close(); err != nil {
		d.opts.Logger.Info("the bucket did not take everything: the next start finds it on disk", slog.Any("err", err))
	}
	return d.store.Close()
}

// closeUploads uploads what waits, for a bounded time.
func (d *daemon) closeUploads() {
	if d.uploads == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainFor(d.opts.StopTimeout))
	defer cancel()
	if err := d.uploads.Close(ctx); err != nil {
		d.opts.Logger.Info("not everything was uploaded to the bucket: the next start finds it on disk", slog.Any("err", err))
	}
}

// ObjectStatus is the state of the object tier.
type ObjectStatus struct {
	object.Stats `metric:""`
	Upload       upload.Stats `json:"upload" metric:""`
	// Estimates, in dollars a day: this node's requests go on as since the start, and the bucket stays as it is.
	RequestDollarsPerDay float64 `json:"request_dollars_per_day" metric:"request_cost_dollars_per_day" help:"Estimated cost of this node's requests to the bucket."`
	StorageDollarsPerDay float64 `json:"storage_dollars_per_day" metric:"storage_cost_dollars_per_day" help:"Estimated cost of what all nodes keep in the bucket."`
}

func (d *daemon) objectStatus(now time.Time) *ObjectStatus {
	if d.object == nil {
		return nil
	}
	s := &ObjectStatus{Stats: d.object.Stats(), Upload: d.uploads.Stats()}
	s.estimate(d.opts.Object.Prices, now.Sub(d.started))
	return s
}

// estimate says what the bucket costs.
func (s *ObjectStatus) estimate(p Prices, up time.Duration) {
	const million, gb, daysOfMonth = 1e6, 1e9, 365.0 / 12
	requests := func(kinds ...bucket.Kind) (n float64) {
		for _, k := range kinds {
			n += float64(s.Requests[string(k)])
		}
		return n
	}
	spent := (requests(bucket.Put, bucket.List)*p.Write + requests(bucket.Get, bucket.Location)*p.Read) / million
	s.RequestDollarsPerDay = spent / max(up, time.Minute).Hours() * 24
	s.StorageDollarsPerDay = float64(s.ObjectBytes+s.LeavingBytes) / gb * p.GBMonth / daysOfMonth
}
