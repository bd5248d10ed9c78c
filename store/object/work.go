package object

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

// work follows the bucket and tells it what this node does, until the tier closes.
func (t *Tier) work() {
	if !t.try() {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { _ = t.follower.Run(t.ctx) })
	all.Go(func() { _ = t.outbox.Run(t.ctx) })
	for t.readOnly.Load() && sleep.For(t.ctx, t.o.RetryMax, nil) {
		_ = t.tryOnce()
	}
	if t.ctx.Err() == nil {
		_ = t.steward.Run(t.ctx)
	}
}

// try finds out what the bucket's server can do, as often as it takes. It reports false if the tier closes first.
func (t *Tier) try() bool {
	said := ""
	for pause := t.o.RetryMin; ; pause = min(2*pause, t.o.RetryMax) {
		err := t.tryOnce()
		if err == nil || t.readOnly.Load() {
			if said != "" || err != nil {
				t.o.Logger.Info("object tier: the bucket can be reached", slog.String("bucket", t.bucket.String()), slog.Bool("read_only", err != nil))
			}
			return true
		}
		if t.ctx.Err() != nil {
			return false
		}
		if why := cause(err); said == "" || why != said && !errors.Is(err, bucket.ErrOpen) {
			said = why
			t.warn("object tier: the bucket cannot be used; this node serves without it and tries again", err)
		}
		if !sleep.For(t.ctx, pause, nil) {
			return false
		}
	}
}

// cause tells errors of the bucket apart.
func cause(err error) string {
	if e := (*bucket.Error)(nil); errors.As(err, &e) {
		return e.Cause.Error()
	}
	return err.Error()
}

// tryOnce tries to write. What the bucket refuses to write can perhaps be read.
func (t *Tier) tryOnce() error {
	err := t.bucket.Try(t.ctx, format.ProbeName(t.outbox.Writer()).String())
	switch {
	case errors.Is(err, bucket.ErrDenied) && !errors.Is(err, bucket.ErrCredentials):
		if !t.readOnly.Swap(true) {
			t.warn("object tier: the bucket refuses writes; this node reads what others write", err)
		}
	case err == nil && t.readOnly.Swap(false):
		t.o.Logger.Info("object tier: the bucket can be written", slog.String("bucket", t.bucket.String()))
	}
	return err
}

func (t *Tier) warn(what string, err error) {
	t.o.Logger.Warn(what, slog.String("bucket", t.bucket.String()), slog.Any("error", err), slog.String("remedy", bucket.Remedy(err)))
}
