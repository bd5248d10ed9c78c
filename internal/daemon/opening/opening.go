// Package opening follows the progress of a store that is being opened.
package opening

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvconn/kvconn/store/disk"
)

// Status is the progress of a store that is being opened, or whose index is being rebuilt while
// it serves.
type Status struct {
	// Stage is what is being done.
	Stage string `json:"stage"`
	// Done and Total count whatever the stage counts; Total is 0 if it is not known.
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
	// ForS is how long it has taken so far, in seconds.
	ForS float64 `json:"for_s"`
}

// String is the status for people.
func (s *Status) String() string {
	if s.Total <= 0 {
		return s.Stage
	}
	return fmt.Sprintf("%s, %d of %d (%d%%)", s.Stage, s.Done, s.Total, int64(100*s.Ratio()))
}

// Ratio is the part that is done; 1 if s is nil, because there is nothing to do.
func (s *Status) Ratio() float64 {
	switch {
	case s == nil:
		return 1
	case s.Total <= 0:
		return 0
	}
	return min(1, float64(s.Done)/float64(s.Total))
}

const (
	// patience is how long a disk may take for one step before it is taken to hang.
	patience = time.Minute
	// logEvery is how often progress is logged.
	logEvery = 10 * time.Second
)

// Tracker follows an opening. It is safe for concurrent use.
type Tracker struct {
	log   *slog.Logger
	first func()

	mu     sync.Mutex
	began  time.Time
	moved  time.Time
	logged time.Time
	now    Status
	active bool
}

// New returns a tracker of an opening that begins now. first, if not nil, is called at the
// first progress: from then on the store is this process's.
func New(log *slog.Logger, now time.Time, first func()) *Tracker {
	return &Tracker{log: log, first: first, began: now, moved: now, logged: now, now: Status{Stage: "opening the store"}, active: true}
}

// Progress takes a report of the store.
func (o *Tracker) Progress(stage string, done, total int64) { o.report(time.Now(), stage, done, total) }

func (o *Tracker) report(now time.Time, stage string, done, total int64) {
	o.mu.Lock()
	first := o.first
	o.first = nil
	same := stage == o.now.Stage
	if !same || done != o.now.Done {
		o.moved = now
	}
	o.now.Stage, o.now.Done, o.now.Total = stage, done, total
	say := !same || now.Sub(o.logged) >= logEvery
	if say {
		o.logged = now
	}
	o.mu.Unlock()
	if first != nil {
		first()
	}
	if say {
		o.log.Info("opening the store", "stage", stage, "done", done, "total", total)
	}
}

// rebuildStage is the stage of an index that is rebuilt while the store serves.
const rebuildStage = "rebuilding the index; what is found already is served"

// Observe takes in the state of an open store, which may still be rebuilding its index.
func (o *Tracker) Observe(now time.Time, st *disk.Stats) {
	if st.Rebuild.Running {
		o.report(now, rebuildStage, st.Rebuild.SlotsDone, st.Rebuild.Slots)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.active && !st.Rebuild.Running && o.now.Stage == rebuildStage {
		o.log.Info("the index is complete", "took", now.Sub(o.began))
	}
	o.active = st.Rebuild.Running
}

// Status is nil once the store is open.
func (o *Tracker) Status(now time.Time) *Status {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.active {
		return nil
	}
	s := o.now
	s.ForS = now.Sub(o.began).Seconds()
	return &s
}

// Stuck reports whether nothing has moved for a minute.
func (o *Tracker) Stuck(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return now.Sub(o.moved) >= patience
}
