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
}

// maxDrain bounds the part of a stop that uploads get: the store needs the rest. What is left is found at
// the next start.
const maxDrain = 10 * time.Second

// openChain puts the object tier after the disk, if there is a bucket, and begins to fill it. The bucket
// need not be reachable.
func (d *daemon) openChain() (*store.Chain, error) {
	if d.opts.Object == nil {
		return store.NewChain(d.store), nil
	}
	to, uo := d.opts.Object.Tier, d.opts.Object.Upload
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

// closeUploads uploads what waits, for a bounded time.
func (d *daemon) closeUploads() {
	if d.uploads == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(maxDrain, d.opts.StopTimeout*2/5))
	defer cancel()
	if err := d.uploads.Close(ctx); err != nil {
		d.opts.Logger.Info("not everything was uploaded to the bucket: the next start finds it on disk", slog.Any("err", err))
	}
}

// ObjectStatus is the state of the object tier.
type ObjectStatus struct {
	object.Stats `metric:""`
	Upload       upload.Stats `json:"upload" metric:""`
}

func (d *daemon) objectStatus() *ObjectStatus {
	if d.object == nil {
		return nil
	}
	return &ObjectStatus{Stats: d.object.Stats(), Upload: d.uploads.Stats()}
}
