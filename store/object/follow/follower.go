// Package follow brings what a bucket's lists say into a node's catalog: what the head names, and the log
// after it.
package follow

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

// Follower follows one bucket. It is safe for concurrent use.
type Follower struct {
	o      Options
	kick   chan struct{} // a match on an idle node
	known  chan struct{} // closed when good is set
	turn   chan struct{} // held to speak with the bucket
	wanted atomic.Int64  // when an engine matched, since start
	paused atomic.Int64  // the present pause
	start  time.Time
	// suspect: read the head again.
	suspect atomic.Bool

	// Guarded by turn:
	opened     bool        // format, head and parts are read
	head       format.Head // the last one
	headRead   time.Time   // when it was read, or found missing
	headDate   time.Time   // then, by the bucket's clock
	identified time.Time   // when the file format was read
	hadHead    bool        // there is one
	past       []past      // the last objects of the log that were applied, without gaps
	failures   int         // of reading the next one

	mu       sync.Mutex
	bucket   format.BucketID
	usable   bool       // bucket is known, and may be written
	position uint64     // the last log object that was applied
	sum      format.Sum // of it, zero if that is not known
	good     time.Time
	newest   time.Time // when what was followed last was written
	stats    Stats
	told     string // the last trouble that was logged
	unread   bool   // the catalog lacks what lists say that were not used
	lacks    lack
}

// lack is why the newest list could not be opened, if that is for want of its key, and when that list was written.
type lack struct {
	err     error
	written format.Seconds
}

// Stats are the figures of a follower.
type Stats struct {
	// Position is the last object of the log that was applied.
	Position uint64
	// Newest is the age of what was followed last, by the bucket's clock; zero if there was nothing.
	Newest time.Duration
	// Followed counts objects of the log, Parts those of parts that were read.
	Followed, Parts uint64
	// Forks counts objects of the log that had changed after they were applied, Gaps how often the log was
	// gone when it was wanted, Emptied how often the bucket was another one.
	Forks, Gaps, Emptied uint64
	// Damaged, Newer, Foreign and Unsealed count lists that were not applied. Unsealed has those sealed with
	// an unknown key too.
	Damaged, Newer, Foreign, Unsealed uint64
}

// New returns a follower, which knows nothing yet.
func New(o Options) (*Follower, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.complete()
	return &Follower{o: o, kick: make(chan struct{}, 1), known: make(chan struct{}), turn: make(chan struct{}, 1), start: time.Now()}, nil
}

// Run follows until the context ends. Trouble is logged, and tried again.
func (f *Follower) Run(ctx context.Context) error {
	var pause time.Duration
	for {
		news, err := f.poll(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.tell(err)
		pause = f.pause(pause, news, err)
		f.paused.Store(int64(pause))
		if !sleep.For(ctx, pause-pause/5+rand.N(2*pause/5+1), f.kick) {
			return ctx.Err()
		}
	}
}

// pause is how long to wait after a poll.
func (f *Follower) pause(last time.Duration, news bool, err error) time.Duration {
	f.mu.Lock()
	interval := f.head.Interval()
	f.mu.Unlock()
	most := max(f.o.PollMax, interval)
	if f.wantedLately() {
		most = max(min(activePause, most), interval)
	}
	switch {
	case errors.Is(err, bucket.ErrOpen):
		return openPause
	case err != nil:
		return min(max(2*last, openPause), errorPause)
	case news:
		return interval
	}
	return min(max(2*last, interval), most)
}

func (f *Follower) wantedLately() bool {
	at := f.wanted.Load()
	return at > 0 && time.Since(f.start)-time.Duration(at) < activeFor
}

// Wanted says that an engine matched: news are asked for more often for a minute, and at once by a node that
// was idle. It does not wait.
func (f *Follower) Wanted() {
	f.wanted.Store(int64(max(time.Since(f.start), 1)))
	if time.Duration(f.paused.Load()) <= activePause {
		return
	}
	f.paused.Store(0)
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// Suspect says that the bucket may be another one than before, or its head: the next poll reads the head
// again. It does not wait.
func (f *Follower) Suspect() { f.suspect.Store(true) }

// CatchUp follows the log to its end, once.
func (f *Follower) CatchUp(ctx context.Context) error {
	if err := f.take(ctx); err != nil {
		return err
	}
	defer f.leave()
	err := f.catchUp(ctx)
	if ctx.Err() == nil {
		f.tell(err)
	}
	return err
}

// Wrote applies a list that this node has just put as the next object of the log. It reports false if
// that is not the next one any more: then [Follower.CatchUp] finds out.
func (f *Follower) Wrote(ctx context.Context, l *format.List) bool {
	if f.take(ctx) != nil {
		return false
	}
	defer f.leave()
	if l.Bucket != f.bucket || l.Name.Number != f.position+1 || len(f.past) > 0 && l.Previous != f.sum {
		return false
	}
	f.apply(l, f.o.Now())
	return true
}

// Again applies a list that is in the log, as a steward found it when it folded that: what was applied before
// may have been another one.
func (f *Follower) Again(l *format.List) {
	f.o.Catalog.Apply(l)
	f.o.Outbox.Logged(l.Sources)
}

// Good is when the bucket last said what is new in it; zero before it is caught up with.
func (f *Follower) Good() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.good
}

// Known is closed once the bucket is caught up with for the first time.
func (f *Follower) Known() <-chan struct{} { return f.known }

// Bucket is the identity of the bucket. It reports false while that is not known, or the bucket is not for
// this program.
func (f *Follower) Bucket() (format.BucketID, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bucket, f.usable
}

// ErrUnread says that lists in the bucket could not be used: what no list seems to have may be in them.
var ErrUnread = errors.New("this node cannot read all lists of the bucket")

// Whole fails with [ErrUnread] if the catalog lacks what some lists say that were followed: those that are damaged,
// newer, or not sealed with a key of this node. Others may know of objects that it does not have.
func (f *Follower) Whole() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unread {
		return ErrUnread
	}
	return nil
}

// lackedFor is how long a list stands for nodes with its key. Where nobody has told anything with that key for so long, it
// was dropped, or is lost.
const lackedFor = 24 * time.Hour

// Lacks says that the newest list which was followed is sealed with a key that this node does not have: others cannot be
// expected to have this node's. Before any list was followed the file format stands for it. After a day without such a list
// it is nil again. The error wraps [seal.ErrUnknownKey].
func (f *Follower) Lacks() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lacks.err == nil || format.SecondsOf(f.o.Now()) > f.lacks.written+format.Seconds(lackedFor/time.Second) {
		return nil
	}
	return f.lacks.err
}

// opens notes whether the newest list could be opened.
func (f *Follower) opens(written format.Seconds, bad error) {
	switch {
	case errors.Is(bad, seal.ErrUnknownKey):
		f.set(func() { f.lacks = lack{bad, written} })
	case bad == nil:
		f.set(func() { f.lacks = lack{} })
	}
}

// Position is the last object of the log that was applied, and its sum; zero if that is not known.
func (f *Follower) Position() (uint64, format.Sum) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.position, f.sum
}

// Stats returns the figures of now.
func (f *Follower) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Position = f.position
	if !f.newest.IsZero() {
		s.Newest = max(f.o.Now().Sub(f.newest), 0)
	}
	return s
}

func (f *Follower) take(ctx context.Context) error {
	select {
	case f.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *Follower) leave() { <-f.turn }

// poll asks for the next object of the log, and for all if it is far from the end.
func (f *Follower) poll(ctx context.Context) (news bool, err error) {
	if err := f.take(ctx); err != nil {
		return false, err
	}
	defer f.leave()
	if !f.opened {
		return false, f.catchUp(ctx)
	}
	if err := f.look(ctx); err != nil {
		return false, err
	}
	if !f.opened {
		return false, f.catchUp(ctx)
	}
	n, old, err := f.next(ctx, 1)
	if err == nil && (old || n == 0 && f.due()) { // due only now: the machine was suspended, and the answer says so
		err = f.catchUp(ctx)
	}
	return n > 0, err
}

// catchUp follows to the end of the log.
func (f *Follower) catchUp(ctx context.Context) error {
	if err := f.look(ctx); err != nil {
		return err
	}
	for most := 1; ; most = min(2*most, logAtOnce) {
		n, _, err := f.next(ctx, most)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
	}
}

// polled notes that the bucket has just told its news, all of them or some. The first time it has to be all.
func (f *Follower) polled(all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.good.IsZero():
	case all:
		close(f.known)
	default:
		return
	}
	f.good = time.Now()
}

// set changes what others read.
func (f *Follower) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// bad counts a list that cannot be used.
func (f *Follower) bad(name format.Name, why error) {
	f.set(func() {
		f.unread = f.unread || name.Kind == format.KindPart || name.Kind == format.KindLog
		switch {
		case errors.Is(why, format.ErrNewer):
			f.stats.Newer++
		case errors.Is(why, format.ErrForeign):
			f.stats.Foreign++
		case errors.Is(why, format.ErrUnsealed), errors.Is(why, seal.ErrUnknownKey):
			f.stats.Unsealed++
		default:
			f.stats.Damaged++
		}
	})
	f.o.Logger.Warn("a list in the bucket was not used", slog.String("name", name.String()), slog.Any("error", why),
		slog.String("remedy", Remedy(why)))
}

// tell logs trouble when it begins, and its end.
func (f *Follower) tell(err error) {
	text := ""
	if err != nil {
		text = err.Error()
		for _, cause := range []error{format.ErrNewer, ErrKey, bucket.ErrOpen, bucket.ErrUnavailable, bucket.ErrDenied, bucket.ErrNoBucket, bucket.ErrArchived} {
			if errors.Is(err, cause) {
				text = cause.Error()
			}
		}
	}
	f.mu.Lock()
	before := f.told
	if errors.Is(err, bucket.ErrOpen) && before != "" {
		text = before // nothing was sent: the trouble is still the one that was told
	}
	f.told = text
	f.mu.Unlock()
	switch {
	case text == before:
	case text == "":
		f.o.Logger.Info("the bucket is followed again")
	default:
		f.o.Logger.Warn("the bucket cannot be followed; its records are offered for 5 minutes after the last news", slog.Any("error", err),
			slog.String("remedy", Remedy(err)))
	}
}

// Remedy is what an operator can do about a list that cannot be used, or about an error of the bucket, in one line for a
// log. It is empty where there is nothing to do but wait.
func Remedy(err error) string {
	switch {
	case errors.Is(err, format.ErrForeign):
		return "none is needed after a bucket was emptied; otherwise look for who copies objects into this prefix"
	case errors.Is(err, format.ErrNewer):
		return "upgrade this node: the bucket has what newer programs wrote, and it is left alone"
	case errors.Is(err, ErrKey):
		return "set key_file to a file with that key"
	case errors.Is(err, seal.ErrUnknownKey):
		return "add that key to the key file of this node"
	case errors.Is(err, format.ErrUnsealed):
		return "give all nodes the same key file"
	case format.Damaged(err):
		return "none is needed for a list, whose news are told or computed again; if it is the file format, use another prefix"
	}
	return bucket.Remedy(err)
}
