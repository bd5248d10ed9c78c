// Package outbox tells all nodes what this one did to a bucket: it puts small lists there, and keeps each
// until the log has it.
package outbox

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store/object/format"
)

// Outbox is what one writer has to tell. It is safe for concurrent use. Only [Outbox.Run] and
// [Outbox.Flush] wait for the bucket.
type Outbox struct {
	o    Options
	kick chan struct{} // something new, or the bucket is known
	turn chan struct{} // held to speak with the bucket

	mu       sync.Mutex
	bucket   format.BucketID // zero: not known yet
	writer   format.WriterID
	counter  uint64 // of objects
	sequence uint64 // of lists
	objects  []format.Object
	losses   []format.Loss
	pending  int64   // bytes of objects and losses in a list
	lists    []*list // in the sequence they were made
	kept     int64   // bytes of lists
	writers  map[format.WriterID]time.Time
	stats    Stats
}

// list is a list of this writer. Its times are guarded by the outbox's mutex, and its name and data by turn too.
type list struct {
	name    format.Name
	data    []byte
	put     time.Time // zero: not yet
	checked time.Time // when it was last known to be there
	logged  time.Time // zero: nobody has said that the log has it
}

// Stats are the figures of an outbox.
type Stats struct {
	// Lists were put; Again counts those of them that were put again, since they went missing.
	Lists, Again uint64
	// Dropped counts entries that did not fit into memory.
	Dropped uint64
	// Waiting lists are not in the log yet, Oldest is how long the first of them has waited.
	Waiting int
	Oldest  time.Duration
	// Writers were in the log within the last 10 minutes.
	Writers int
}

// New returns an outbox with a writer of its own. Run works on it.
func New(o Options) *Outbox {
	o.complete()
	return &Outbox{
		o: o, kick: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		writer: format.NewWriterID(), writers: make(map[format.WriterID]time.Time),
	}
}

// Begin says which bucket it is. If it is another one than before, what was to be told of that is
// forgotten.
func (x *Outbox) Begin(b format.BucketID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.bucket != b && x.bucket != (format.BucketID{}) {
		x.objects, x.losses, x.lists, x.pending, x.kept = nil, nil, nil, 0, 0
	}
	x.bucket = b
	x.wake()
}

// Writer is the present id of this writer.
func (x *Outbox) Writer() format.WriterID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.writer
}

// NextID returns an id that no object ever had.
func (x *Outbox) NextID() format.ObjectID {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counter++
	return format.NewObjectID(x.writer, x.counter)
}

// Collided says that another process uses the id of this writer: an object of it was there before it was
// put. A new id is drawn, if w is still the present one.
func (x *Outbox) Collided(w format.WriterID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.writer != w {
		return
	}
	x.writer = format.NewWriterID()
	x.o.Logger.Warn("another process writes to the bucket with the id of this one, as after a copy of a running machine: this one has drawn another",
		slog.String("was", w.String()), slog.String("writer", x.writer.String()))
}

// Add tells of an object that is complete in the bucket.
func (x *Outbox) Add(o format.Object) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.full(cost(&o)) {
		return
	}
	x.objects = append(x.objects, o)
	x.wake()
}

// Lose tells that an object is missing or damaged.
func (x *Outbox) Lose(o format.ObjectID, why format.Cause) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.full(smallCost) {
		return
	}
	x.losses = append(x.losses, format.Loss{Object: o, Cause: why})
	x.wake()
}

// full takes memory for an entry. It reports that there is none.
func (x *Outbox) full(bytes int64) bool {
	if x.pending+x.kept+bytes > maxKeptBytes {
		x.stats.Dropped++
		return true
	}
	x.pending += bytes
	return false
}

// wake wakes Run.
func (x *Outbox) wake() {
	select {
	case x.kick <- struct{}{}:
	default:
	}
}

// Logged says that the log has these lists.
func (x *Outbox) Logged(s []format.Source) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	for _, source := range s {
		x.writers[source.Writer] = now
		if l := x.find(source); l != nil {
			l.logged = now
		}
	}
}

// Unlogged takes Logged back: another object of the log took the place of the one that had these lists.
// Lists that are still known are put again if they are missing.
func (x *Outbox) Unlogged(s []format.Source) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, source := range s {
		if l := x.find(source); l != nil {
			l.logged, l.checked = time.Time{}, time.Time{}
		}
	}
	x.wake()
}

func (x *Outbox) find(s format.Source) *list {
	i := slices.IndexFunc(x.lists, func(l *list) bool { return l.name.Writer == s.Writer && l.name.Number == s.Sequence })
	if i < 0 {
		return nil
	}
	return x.lists[i]
}

// Stats returns the figures of now.
func (x *Outbox) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forget(time.Now())
	s := x.stats
	s.Writers = len(x.writers)
	for _, l := range x.lists {
		if l.logged.IsZero() {
			s.Waiting++
			if !l.put.IsZero() {
				s.Oldest = max(s.Oldest, time.Since(l.put))
			}
		}
	}
	return s
}

// forget lets go of what is old: lists that have been in the log for long, and writers that are gone. Of
// lists that wait the oldest go when there is no room for them.
func (x *Outbox) forget(now time.Time) {
	for w, at := range x.writers {
		if now.Sub(at) > remember {
			delete(x.writers, w)
		}
	}
	x.lists = slices.DeleteFunc(x.lists, func(l *list) bool {
		old := !l.logged.IsZero() && (now.Sub(l.logged) > remember || x.kept > maxKeptBytes/2)
		if old {
			x.kept -= int64(len(l.data))
		}
		return old
	})
	for x.kept > maxKeptBytes/2 && len(x.lists) > 0 && !x.lists[0].put.IsZero() {
		x.kept -= int64(len(x.lists[0].data))
		x.lists = x.lists[1:]
		x.stats.Dropped++
	}
}

// interval is how long to wait after a list before the next is put.
func (x *Outbox) interval() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return leastPause + time.Duration(len(x.writers))*eachWriter
}

// Run puts lists, and watches over them until the log has them. It returns when the context has ended.
func (x *Outbox) Run(ctx context.Context) error {
	var last, uses, stuck time.Time // when a list was put, with uses, and when Stuck was called
	uses, retry := time.Now(), time.Duration(0)
	for {
		wait := usesPause
		now := time.Now()
		var err error
		switch due := last.Add(x.interval()); {
		case !x.ready():
		case x.waits() && now.Before(due):
			wait = due.Sub(now)
		case x.waits() || now.Sub(uses) >= usesPause:
			var n int
			n, err = x.send(ctx, true)
			uses = now
			if n > 0 {
				last = time.Now()
			}
			wait = x.interval()
		default:
			wait = uses.Add(usesPause).Sub(now)
		}
		if x.stuck() && time.Since(stuck) >= stuckAfter {
			stuck = time.Now()
			x.o.Stuck()
		}
		if err == nil {
			err = x.check(ctx)
		}
		if x.open() {
			wait = min(wait, stuckAfter)
		}
		if err == nil {
			retry = 0
		} else {
			retry = min(max(2*retry, firstRetry), lastRetry)
			wait = retry
		}
		kick := x.kick
		if err != nil { // what is new cannot be told before the bucket works
			kick = nil
		}
		if !sleep.For(ctx, wait+rand.N(wait/10+1), kick) {
			return ctx.Err()
		}
	}
}

func (x *Outbox) ready() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.bucket != (format.BucketID{})
}

// waits reports whether there is anything that cannot wait for long.
func (x *Outbox) waits() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.objects)+len(x.losses) > 0 || slices.ContainsFunc(x.lists, func(l *list) bool { return l.put.IsZero() })
}

// open reports whether the log has yet to take a list.
func (x *Outbox) open() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forget(time.Now())
	return slices.ContainsFunc(x.lists, func(l *list) bool { return l.logged.IsZero() })
}

// stuck reports whether a list has waited for the log for too long.
func (x *Outbox) stuck() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.ContainsFunc(x.lists, func(l *list) bool {
		return l.logged.IsZero() && !l.put.IsZero() && time.Since(l.put) >= stuckAfter
	})
}
