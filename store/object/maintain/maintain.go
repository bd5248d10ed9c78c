// Package maintain does with a bucket, once and for a command, what nodes do as they run: it checks the bucket,
// or collects what is too much in it. It takes the lease for what only the steward may do, so it can run beside nodes.
package maintain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/codec"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/object/fsck"
	"github.com/kvconn/kvconn/store/object/outbox"
	"github.com/kvconn/kvconn/store/object/steward"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

// Options say which bucket it is. Bucket.URL must be set.
type Options struct {
	Bucket bucket.Options
	// Ring has the keys of the bucket's nodes. Default: none.
	Ring *seal.Ring
	// Node names this process in the lease. Default: the host's name.
	Node string
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

const (
	// damagedTries are how often an object of the log is read before the follower passes over it.
	damagedTries = 3
	damagedPause = 100 * time.Millisecond
	// silence is how long a command waits for a sign of the bucket: no load waits for it.
	silence = time.Minute
	// decoders decode at one time: as many objects as fsck reads.
	decoders = 8
)

// node is this process as a node of the bucket that offers nothing and keeps nothing.
type node struct {
	bucket   *bucket.Bucket
	catalog  *catalog.Catalog
	follower *follow.Follower
	outbox   *outbox.Outbox
	steward  *steward.Steward
	verifier *fsck.Verifier
}

// open opens a bucket that nodes use, and reads what its lists say. With write it has to be writable; without,
// nothing in it changes.
func open(ctx context.Context, o Options, write bool) (*node, error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Bucket.Logger = cmp.Or(o.Bucket.Logger, o.Logger)
	o.Bucket.Silence = cmp.Or(o.Bucket.Silence, silence)
	if o.Node == "" {
		o.Node, _ = os.Hostname()
	}
	n := &node{}
	var err error
	if n.bucket, err = bucket.Open(o.Bucket); err != nil {
		return nil, err
	}
	n.catalog, err = catalog.New(catalog.Options{
		Now: func() format.Seconds { return format.SecondsOf(n.now()) }, Readable: func(uint16, uint8) bool { return true },
	})
	if err != nil {
		n.bucket.Close()
		return nil, err
	}
	if err = n.link(&o); err == nil {
		err = n.begin(ctx, write)
	}
	if err != nil {
		return nil, errors.Join(explain(n.bucket, err), n.close())
	}
	return n, nil
}

// link makes what ties this process to the nodes.
func (n *node) link(o *Options) (err error) {
	planes, err := codec.New(decoders)
	if err != nil {
		return err
	}
	n.verifier = &fsck.Verifier{Client: n.bucket, Opener: record.Opener{Ring: o.Ring, Codec: planes}}
	n.outbox = outbox.New(outbox.Options{Client: n.bucket, Ring: o.Ring, Logger: o.Logger})
	if n.follower, err = follow.New(follow.Options{
		Client: n.bucket, Catalog: n.catalog, Outbox: n.outbox, Ring: o.Ring, ReadOnly: true, Now: n.now, Logger: o.Logger,
	}); err != nil {
		return err
	}
	n.steward, err = steward.New(steward.Options{
		Client: n.bucket, Follower: n.follower, Ring: o.Ring, Node: o.Node, Now: n.now, Codec: planes, Logger: o.Logger,
	})
	return err
}

// begin finds out what the server can do, and reads what the lists say.
func (n *node) begin(ctx context.Context, write bool) error {
	if write {
		if err := n.bucket.Try(ctx, format.ProbeName(n.outbox.Writer()).String()); err != nil {
			return fmt.Errorf("try to write: %w", err)
		}
	}
	err := n.catchUp(ctx)
	id, known := n.follower.Bucket()
	if n.verifier.Bucket = id; !known && errors.Is(err, bucket.ErrMissing) {
		return fmt.Errorf("it holds no cache, or its file %q is lost: %w", format.FormatFile, err)
	}
	return err
}

// catchUp follows the log to its end, past what is damaged in it.
func (n *node) catchUp(ctx context.Context) error {
	at, _ := n.follower.Position()
	for tries := 1; ; tries++ {
		err := n.follower.CatchUp(ctx)
		now, _ := n.follower.Position()
		if now > at {
			at, tries = now, 0
		}
		if err == nil || !format.Damaged(err) || tries >= damagedTries {
			return err
		}
		if !sleep.For(ctx, damagedPause, nil) {
			return context.Cause(ctx)
		}
	}
}

// now is the bucket's clock, or this machine's before the first answer.
func (n *node) now() time.Time {
	if now := n.bucket.Now(); !now.IsZero() {
		return now
	}
	return time.Now()
}

func (n *node) close() error {
	n.bucket.Close()
	return n.catalog.Close()
}

// explain says what can be done about an error.
func explain(b *bucket.Bucket, err error) error {
	switch remedy := bucket.Remedy(err); {
	case errors.Is(err, follow.ErrKey), errors.Is(err, steward.ErrKey):
		return fmt.Errorf("%v: %w: give the key file of its nodes", b, err)
	case errors.Is(err, follow.ErrUnread):
		return fmt.Errorf("%v: %w: give the key file of its nodes, and use a program as new as theirs", b, err)
	case remedy != "":
		return fmt.Errorf("%v: %w; %s", b, err, remedy)
	}
	return fmt.Errorf("%v: %w", b, err)
}
