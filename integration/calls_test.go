package integration

import (
	"context"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/engine"
)

// The points at which a test can act: before and after the calls of a connector.
const (
	atMatch   = "before a match"
	atOffer   = "between the match that offers something and the step"
	atPlanned = "between the step that plans a load and the load"
	atLoading = "in a load"
	atSave    = "before a save"
	atSaving  = "in a save's write"
	atPoll    = "before a poll"
)

// calls watches the calls of an engine's connector: it lets a test act at one of them, and
// knows the longest, and the time of all.
type calls struct {
	at func(point string)

	mu      sync.Mutex
	longest time.Duration
	total   time.Duration
	which   string
}

func (c *calls) reach(point string) {
	if c.at != nil {
		c.at(point)
	}
}

// timed runs a call and takes note of how long it took.
func (c *calls) timed(which string, call func()) {
	began := time.Now()
	call()
	took := time.Since(began)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total += took
	if took > c.longest {
		c.longest, c.which = took, which
	}
}

// waited is the time that the engine has spent in calls so far.
func (c *calls) waited() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// slowest is the longest call.
func (c *calls) slowest() (time.Duration, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.longest, c.which
}

type watchedScheduler struct {
	engine.SchedulerClient
	calls *calls
}

var _ engine.SchedulerConnector = (*watchedScheduler)(nil)

func (s *watchedScheduler) Match(ctx context.Context, m *connector.MatchRequest) (o connector.Offer) {
	s.calls.reach(atMatch)
	s.calls.timed("match", func() { o = s.SchedulerClient.Match(ctx, m) })
	if o.Tokens > 0 {
		s.calls.reach(atOffer)
	}
	return o
}

func (s *watchedScheduler) Step(ctx context.Context, m *connector.StepRequest) (r connector.StepReply) {
	s.calls.timed("step", func() { r = s.SchedulerClient.Step(ctx, m) })
	if len(r.Loads) > 0 {
		s.calls.reach(atPlanned)
	}
	return r
}

func (s *watchedScheduler) Loaded(ctx context.Context, m *connector.LoadedReport) {
	s.calls.timed("loaded", func() { s.SchedulerClient.Loaded(ctx, m) })
}

type watchedWorker struct {
	engine.WorkerClient
	calls *calls
	// rank 0 is called by the engine's own goroutine: it alone reaches points.
	rank int
}

func (w *watchedWorker) reach(point string) {
	if w.rank == 0 {
		w.calls.reach(point)
	}
}

var (
	_ engine.WorkerConnector = (*watchedWorker)(nil)
	_ engine.Canceller       = (*watchedWorker)(nil)
)

func (w *watchedWorker) Load(ctx context.Context, metadata []byte, loads []connector.PlannedLoad) {
	w.calls.timed("load", func() { w.WorkerClient.Load(ctx, metadata, loads) })
	if len(loads) > 0 {
		w.reach(atLoading)
	}
}

func (w *watchedWorker) Save(ctx context.Context, metadata []byte) (r connector.SaveResult) {
	w.reach(atSave)
	w.calls.timed("save", func() { r = w.WorkerClient.Save(ctx, metadata) })
	if r.Taken > 0 {
		w.reach(atSaving)
	}
	return r
}

func (w *watchedWorker) Poll(ctx context.Context) (done []connector.FinishedLoad) {
	w.reach(atPoll)
	w.calls.timed("poll", func() { done = w.WorkerClient.Poll(ctx) })
	return done
}
