// Package steward keeps the lists of a bucket in order: the node that holds the lease merges what writers
// tell into the log, and folds the log into parts.
package steward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/codec"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

const (
	// A lease is renewed every renewEvery, lets others take it after leaseFor, and binds its own holder
	// for holdFor: the rest is for requests that are under way.
	renewEvery = 15 * time.Second
	holdFor    = 45 * time.Second
	leaseFor   = time.Minute
	// Without conditional writes a lease is read again after settle, a log object after readBack.
	settle   = 3 * time.Second
	readBack = time.Second
	// The lease is looked at this often, and by nodes whose lists wait.
	lookEvery = time.Hour
	lookPause = 5 * time.Second
	// Lists are merged every writers × perWriter, within these, and while there are none every lastMerge.
	perWriter  = 5 * time.Millisecond
	firstMerge = time.Second
	lastMerge  = 5 * time.Second
	// A lease is left within leaveWithin: a bucket that hangs is not to hold up a stop.
	leaveWithin = time.Second
	// After a failure it goes on later.
	failurePause = 5 * time.Second
	// The head is looked at this often.
	headEvery = 10 * time.Minute
	// Writers are remembered for this long.
	remember = 10 * time.Minute
)

// Follower is what a steward asks of this node's follower.
type Follower interface {
	CatchUp(ctx context.Context) error
	Suspect()
	Bucket() (format.BucketID, bool)
	Position() (uint64, format.Sum)
	// Lacks says that the newest list is sealed with a key that this node does not have.
	Lacks() error
	Wrote(ctx context.Context, l *format.List) bool
	Again(l *format.List)
}

// Collector removes what a bucket has too much of.
type Collector interface {
	// Collect is called with the lease held, after each merge, and does what is due. What it asks of the term
	// fails when the lease is lost, and so must Collect.
	Collect(ctx context.Context, t Term) error
}

// Options say what a [Steward] works with. Client and Follower are needed.
type Options struct {
	Client   bucket.Client
	Follower Follower
	// Ring opens and seals lists.
	Ring *seal.Ring
	// Node is a name of this node for people, at most 255 bytes.
	Node string
	// Now is the bucket's clock. Default: that of this machine.
	Now func() time.Time
	// Codec decodes records of objects that a reader found damaged, to see whether they are. Default: those that are
	// compressed are taken for intact.
	Codec *codec.Codec
	// Collector is called after each merge. Default: none.
	Collector Collector
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// ErrKey says that this node must not be steward, since it does not have the key of the newest list: it could read
// nothing that the others tell, and they could read nothing that it writes. The error names the key.
var ErrKey = errors.New("the bucket's newest list cannot be opened")

// Steward is a node that may be steward of a bucket. It is safe for concurrent use.
type Steward struct {
	o      Options
	writer format.WriterID
	look   chan struct{}
	parts  uint64 // counter of their ids
	counts counts
	told   string // by Run: why this node is not steward
}

// counts are the figures of a steward, of all its terms.
type counts struct {
	holds                                        atomic.Bool
	terms, merged, logs, folds, merges           atomic.Uint64
	damaged, newer, foreign, unsealed, gaps, bad atomic.Uint64
}

// Stats are the figures of a steward since it was made.
type Stats struct {
	// Steward is set while this node holds the lease; Terms counts how often it took it.
	Steward bool
	Terms   uint64
	// Merged lists of writers went into Logs objects of the log; Folds parts were made of these, and
	// Compactions of other parts.
	Merged, Logs, Folds, Compactions uint64
	// Damaged, Newer, Foreign and Unsealed lists of writers were not merged. Gaps counts lists that writers
	// did not put, or that went missing.
	Damaged, Newer, Foreign, Unsealed, Gaps uint64
	// Removed counts objects that were missing or damaged, as readers had said.
	Removed uint64
}

// New returns a steward that holds no lease.
func New(o Options) (*Steward, error) {
	if o.Client == nil || o.Follower == nil {
		return nil, errors.New("steward options: Client and Follower are needed")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Steward{o: o, writer: format.NewWriterID(), look: make(chan struct{}, 1)}
	if _, err := (format.Lease{Node: o.Node, Writer: s.writer}).Encode(); err != nil {
		return nil, fmt.Errorf("steward options: Node: %w", err)
	}
	return s, nil
}

// Stats returns the figures of now.
func (s *Steward) Stats() Stats {
	c := &s.counts
	return Stats{
		Steward: c.holds.Load(), Terms: c.terms.Load(),
		Merged: c.merged.Load(), Logs: c.logs.Load(), Folds: c.folds.Load(), Compactions: c.merges.Load(),
		Damaged: c.damaged.Load(), Newer: c.newer.Load(), Foreign: c.foreign.Load(), Unsealed: c.unsealed.Load(), Gaps: c.gaps.Load(),
		Removed: c.bad.Load(),
	}
}

// Look has the lease looked at soon: a list waits, and perhaps nobody merges. It does not wait.
func (s *Steward) Look() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// Run is steward whenever nobody else is. When the context ends it gives the lease up, and returns.
func (s *Steward) Run(ctx context.Context) error {
	for {
		pause := lookEvery
		held, err := s.Serve(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrKey):
			s.tell(err)
			pause = leaseFor
		case err != nil && !errors.Is(err, errLost):
			s.o.Logger.Debug("not steward of the bucket", slog.Any("error", err))
			pause = leaseFor // the follower tells of it, or the bucket itself
		case held:
			s.told, pause = "", leaseFor
		}
		if !sleep.For(ctx, lookPause, nil) || !sleep.For(ctx, pause-pause/5+rand.N(2*pause/5), s.look) {
			return ctx.Err()
		}
	}
}

// tell logs why this node is not steward, unless it said so last.
func (s *Steward) tell(why error) {
	if text := why.Error(); text != s.told {
		s.told = text
		s.o.Logger.Warn("this node cannot be steward of the bucket", slog.Any("error", why), slog.String("remedy", follow.Remedy(why)))
	}
}

// admitted fails if this node does not have the key of the newest list.
func (s *Steward) admitted() error {
	if err := s.o.Follower.Lacks(); err != nil {
		return fmt.Errorf("%w: %w", ErrKey, err)
	}
	return nil
}

// Serve takes the lease, if nobody holds it, and is steward until it is lost or the context ends. held reports
// whether it was.
func (s *Steward) Serve(ctx context.Context) (held bool, err error) {
	return s.hold(ctx, (*term).work)
}

// hold takes the lease, if nobody holds it, and works until that is done, or the lease is lost.
func (s *Steward) hold(ctx context.Context, work func(*term, context.Context) error) (held bool, err error) {
	if _, ok := s.o.Follower.Bucket(); !ok {
		if err := s.o.Follower.CatchUp(ctx); err != nil {
			return false, err
		}
	}
	if err := s.admitted(); err != nil {
		return false, err
	}
	t := &term{s: s}
	if held, err = t.take(ctx); !held || err != nil {
		return false, err
	}
	s.counts.terms.Add(1)
	s.counts.holds.Store(true)
	defer s.counts.holds.Store(false)
	s.o.Logger.Info("this node is steward of the bucket")
	err = t.serve(ctx, work)
	s.o.Logger.Info("this node is no longer steward of the bucket", slog.Any("why", err))
	return true, err
}
