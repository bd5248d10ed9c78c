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
	answers     chan answer
	under       int // requests without an answer
	stops       [2]context.CancelFunc
	winner      int // the request that decided
	hedged      bool
}

// get asks for a range. A second request is sent if the head of the first one's answer is late.
func (f *Fetcher) get(ctx context.Context, r *run, name string, from, bytes int64) (*body, error) {
	c := &race{f: f, ctx: ctx, name: name, from: from, bytes: bytes, answers: make(chan answer, 2)}
	began := time.Now()
	f.mu.Lock()
	f.heads.asked()
	late := f.heads.late(f.o.HedgeAfter)
	f.mu.Unlock()
	c.send(0)
	a := c.run(late)
	c.leave()
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

// run waits for the first answer that decides: a head, or that there is no such object.
func (c *race) run(late time.Duration) (a answer) {
	timer := time.NewTimer(late)
	defer timer.Stop()
	for c.under > 0 {
		select {
		case <-timer.C:
			c.late()
			continue
		case a = <-c.answers:
		}
		c.under--
		c.winner = a.lane
		if a.err == nil {
			return a
		}
		c.stops[a.lane]()
		if errors.Is(a.err, bucket.ErrMissing) || errors.Is(a.err, bucket.ErrRange) || errors.Is(a.err, bucket.ErrArchived) {
			return a
		}
	}
	return a
}

// late notes that the head is late, and sends another request if it may: it takes a connection.
func (c *race) late() {
	f := c.f
	f.mu.Lock()
	f.speed.flows(time.Now())
	if c.hedged = f.used < f.o.Connections && f.heads.hedge(); c.hedged {
		f.used++
	}
	f.mu.Unlock()
	if c.hedged {
		f.counts.hedges.Add(1)
		c.send(1)
	}
}

// send sends a request.
func (c *race) send(lane int) {
	ctx, stop := context.WithCancel(c.ctx)
	c.stops[lane] = stop
	c.under++
	c.f.workers.Go(func() {
		b, err := c.f.o.Bucket.Get(ctx, c.name, c.from, c.bytes)
		c.answers <- answer{Body: b, err: err, lane: lane}
	})
}

// leave ends the request that has not won, if there is one, and gives its connection back.
func (c *race) leave() {
	if !c.hedged {
		return
	}
	if c.under == 0 {
		c.f.freeConnection()
		return
	}
	c.stops[1-c.winner]() // the winner's context goes on with its body
	c.f.workers.Go(func() {
		defer c.f.freeConnection()
		if a := <-c.answers; a.err == nil {
			_ = a.Close()
		}
	})
}

// freeConnection ends the use of a connection.
func (f *Fetcher) freeConnection() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used--
	f.dispatch()
}

// stopped is a timer that does not run yet.
func stopped(do func()) *time.Timer {
	t := time.AfterFunc(time.Hour, do)
	t.Stop()
	return t
}
