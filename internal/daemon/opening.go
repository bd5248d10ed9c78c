package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/sdnotify"
	"github.com/kvconn/kvconn/store/disk"
)

// OpeningStatus is how far a store has come that is being opened, or whose index is being
// rebuilt while it serves.
type OpeningStatus struct {
	// Stage is what is being done.
	Stage string `json:"stage"`
	// Done and Total are in what the stage counts; Total is 0 if it is not known.
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
	// ForS is how long it has taken so far, in seconds.
	ForS float64 `json:"for_s"`
}

// String says it to people.
func (s *OpeningStatus) String() string {
	if s.Total <= 0 {
		return s.Stage
	}
	return fmt.Sprintf("%s, %d of %d (%d%%)", s.Stage, s.Done, s.Total, percentOf(s.Done, s.Total))
}

// ratio is what is done of all; 1 if there is nothing to do.
func (s *OpeningStatus) ratio() float64 {
	switch {
	case s == nil:
		return 1
	case s.Total <= 0:
		return 0
	}
	return min(1, float64(s.Done)/float64(s.Total))
}

func percentOf(done, total int64) int64 { return int64(float64(done) / float64(total) * 100) }

const (
	// openingTick is how often the service manager hears of an opening.
	openingTick = time.Second
	// openingExtend is the time that it is asked for, again and again while there is
	// progress: more than the largest file of a store takes to read.
	openingExtend = 2 * time.Minute
	// openingPatience ends that where nothing has moved: a disk that hangs is the manager's
	// to act on.
	openingPatience = time.Minute
	// openingLog is how often progress is logged.
	openingLog = 10 * time.Second
)

// opening follows the progress of a store that is being opened.
type opening struct {
	log *slog.Logger
	// first, if set, is called at the first progress: the store is this process's from then
	// on.
	first func()

	mu     sync.Mutex
	began  time.Time
	moved  time.Time
	logged time.Time
	now    OpeningStatus
	active bool
}

func newOpening(log *slog.Logger, now time.Time) *opening {
	return &opening{log: log, began: now, moved: now, logged: now, now: OpeningStatus{Stage: "opening the store"}, active: true}
}

// progress is what the store reports.
func (o *opening) progress(stage string, done, total int64) { o.report(time.Now(), stage, done, total) }

func (o *opening) report(now time.Time, stage string, done, total int64) {
	o.mu.Lock()
	first := o.first
	o.first = nil
	same := stage == o.now.Stage
	if !same || done != o.now.Done {
		o.moved = now
	}
	o.now.Stage, o.now.Done, o.now.Total = stage, done, total
	say := !same || now.Sub(o.logged) >= openingLog
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

// observe takes in how an open store does: it may still be rebuilding its index.
func (o *opening) observe(now time.Time, st *disk.Stats) {
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

// status is nil once the store is open.
func (o *opening) status(now time.Time) *OpeningStatus {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.active {
		return nil
	}
	s := o.now
	s.ForS = now.Sub(o.began).Seconds()
	return &s
}

// stuck reports whether nothing has moved for a while.
func (o *opening) stuck(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return now.Sub(o.moved) >= openingPatience
}

// tendOpening tells the service manager how the opening goes, until ctx ends: it is asked
// for more time as long as something moves. Its watchdog waits for readiness.
func (d *daemon) tendOpening(ctx context.Context) {
	tick := time.NewTicker(openingTick)
	defer tick.Stop()
	told := ""
	for {
		now := time.Now()
		if s := d.opening.status(now); s != nil {
			if line := s.String(); line != told {
				told = line
				d.opts.tell(sdnotify.Status(line))
			}
			if !d.opening.stuck(now) {
				d.opts.tell(sdnotify.ExtendTimeout(openingExtend))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
