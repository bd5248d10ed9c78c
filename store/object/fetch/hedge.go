package fetch

import (
	"context"
	"errors"
	"time"

	"github.com/kvconn/kvconn/store/object/bucket"
)

// answer is the head of an answer, or why there is none.
type answer struct {
	*bucket.Body
	err error
	// lane is 0 for the first request, 1 for the second.
	lane int
}

// race is a GET, and perhaps another of the same range: the first answer wins.
type race struct {
	f           *Fetcher
	ctx         context.Context
	name        string
	from, bytes int64
	// Guarded by the mutex of the fetcher:
	stops   [2]context.CancelFunc
	waiting int // requests without an answer
	under   int // requests that hold a connection
	decided bool
	best    answer        // the newest one until one decides
	over    chan struct{} // of a race with two requests: closed when it is decided
}

// get asks for a range. A second request is sent if the head of the first one's answer is late. The first is sent
// by the calling goroutine: nearly always it is the only one.
func (f *Fetcher) get(ctx context.Context, r *run, name string, from, bytes int64) (*body, error) {
	c := &race{f: f, ctx: ctx, name: name, from: from, bytes: bytes}
	began := time.Now()
	f.mu.Lock()
	f.heads.asked()
	late := f.heads.late(f.o.HedgeAfter)
	first := c.begin(0)
	f.mu.Unlock()
	timer := time.AfterFunc(late, c.late)
	c.ask(first, 0)
	timer.Stop()
	a := c.result()
	if a.err != nil {
		return nil, a.err
	}
	if a.lane > 0 {
		f.counts.won.Add(1)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	f.speed.flows(now)
	f.heads.came(now.Sub(began))
	stop := r.stop
	return &body{
		ReadCloser: a.Body, first: from, at: from, stall: f.o.Stall,
		timer: stopped(func() { stop(errStalled) }), end: c.stops[a.lane],
	}, nil
}

// begin counts a request, and returns its context. f.mu is held.
func (c *race) begin(lane int) context.Context {
	c.waiting++
	c.under++
	ctx, stop := context.WithCancel(c.ctx)
	c.stops[lane] = stop
	return ctx
}

// late notes that the head is late, and sends another request if it may: it takes a connection.
func (c *race) late() {
	f := c.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.decided { // while the timer ran out
		return
	}
	f.speed.flows(time.Now())
	if f.used >= f.o.Connections || !f.heads.hedge() {
		return
	}
	f.used++
	f.counts.hedges.Add(1)
	c.over = make(chan struct{})
	second := c.begin(1)
	f.workers.Go(func() { c.ask(second, 1) })
}

// ask sends a request and notes its answer. The last of two requests gives back the connection of the second.
func (c *race) ask(ctx context.Context, lane int) {
	b, err := c.f.o.Bucket.Get(ctx, c.name, c.from, c.bytes)
	wins := c.note(answer{Body: b, err: err, lane: lane})
	if err != nil || !wins {
		c.stops[lane]()
	}
	if err == nil && !wins {
		_ = b.Close()
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.under--; c.under == 0 && c.over != nil {
		c.f.used--
		c.f.dispatch()
	}
}

// note keeps an answer, and reports false if another has decided.
func (c *race) note(a answer) bool {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.decided {
		return false
	}
	c.best = a
	c.waiting--
	c.decided = c.waiting == 0 || a.err == nil || errors.Is(a.err, bucket.ErrMissing) || errors.Is(a.err, bucket.ErrRange) ||
		errors.Is(a.err, bucket.ErrArchived)
	if !c.decided {
		return true
	}
	if c.over != nil {
		close(c.over)
	}
	if c.waiting > 0 {
		c.stops[1-a.lane]() // the winner's context goes on with its body
	}
	return true
}

// result waits for the answer that decides.
func (c *race) result() answer {
	c.f.mu.Lock()
	over := c.over
	c.f.mu.Unlock()
	if over != nil {
		<-over
	}
	return c.best // nothing writes to it any more
}

// stopped is a timer that does not run yet.
func stopped(do func()) *time.Timer {
	t := time.AfterFunc(time.Hour, do)
	t.Stop()
	return t
}
