package bucket

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// The breaker opens after maxRow failures in a row, or after half of the last window.
	maxRow = 5
	window = 20
	// While it is open one request tries it after a pause that doubles from the first to the last.
	firstPause = time.Second
	lastPause  = 30 * time.Second
	// Openings are logged once in logEvery.
	logEvery = time.Minute
)

// outcome is what an attempt says of the bucket.
type outcome int

const (
	// neither: nothing, as when its caller left.
	neither outcome = iota
	good
	bad
)

// judge says what an error means for the bucket as a whole. An object that is missing, damaged or archived says
// that the bucket answers; one that refuses us is of no use to anybody here, but one that refuses what would
// change it may still be read.
func judge(kind Kind, cause error) outcome {
	if cause == ErrDenied && (kind == Put || kind == Delete) {
		return neither
	}
	switch cause {
	case ErrMissing, ErrRange, ErrDamaged, ErrArchived, ErrCondition, ErrRefused:
		return good
	case context.Canceled, context.DeadlineExceeded:
		return neither // a deadline of the caller's may be any time
	}
	return bad
}

// pass is the leave to send a request.
type pass struct {
	// number is that of the opening before it: what was sent before the next says nothing after it.
	number uint64
	trial  bool
}

// breaker stops requests to a bucket that does not work. It is safe for concurrent use.
type breaker struct {
	// opened is called when it opens, with the last error, nil for silence; closed when it closes.
	opened func(why error)
	closed func(open time.Duration)

	isOpen atomic.Bool

	mu     sync.Mutex
	number uint64
	row    int
	recent [window]bool // true: bad
	n, bad int          // attempts in recent, counted from the last closing, and the bad ones of them
	// While it is open:
	since  time.Time
	until  time.Time
	pause  time.Duration
	trying bool
	silent bool // it was opened by silence: a byte of a request from before closes it
	logged time.Time
	told   bool // of this opening
}

// enter asks for leave to send a request. Without it the breaker is open.
func (b *breaker) enter() (pass, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isOpen.Load() {
		return pass{number: b.number}, true
	}
	if b.trying || time.Now().Before(b.until) {
		return pass{}, false
	}
	b.trying = true
	return pass{number: b.number, trial: true}, true
}

// done says what became of a request.
func (b *breaker) done(p pass, o outcome, why error) {
	if tell := b.settle(p, o, why); tell != nil {
		tell()
	}
}

// settle is done, but for the call of opened or closed, which it returns.
func (b *breaker) settle(p pass, o outcome, why error) (tell func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case p.number != b.number:
		if o == good && b.silent && !p.trial && p.number+1 == b.number {
			return b.shut()
		}
	case p.trial && o == good:
		return b.shut()
	case p.trial && o == bad:
		b.again()
	case p.trial:
		b.trying = false // another may try
	case b.isOpen.Load() || o == neither:
	default:
		b.count(o == bad)
		if o == bad && (b.row >= maxRow || b.n >= window && b.bad >= window/2) {
			return b.open(why)
		}
	}
	return nil
}

// silence says that no request has had a byte for too long.
func (b *breaker) silence() {
	if tell := b.fallSilent(); tell != nil {
		tell()
	}
}

func (b *breaker) fallSilent() (tell func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.isOpen.Load():
		tell = b.open(nil)
		b.silent = true
	case b.trying:
		b.again()
	}
	return tell
}

func (b *breaker) count(failed bool) {
	at := b.n % window
	if b.n >= window && b.recent[at] {
		b.bad--
	}
	b.recent[at] = failed
	b.n++
	b.row = 0
	if failed {
		b.bad++
	}
	for i := 1; i <= min(b.n, maxRow) && b.recent[(b.n-i)%window]; i++ {
		b.row = i
	}
}

// open opens the breaker. It returns what has to be told without the lock, if anything.
func (b *breaker) open(why error) (tell func()) {
	now := time.Now()
	b.number++
	b.since, b.pause, b.trying, b.silent = now, firstPause, false, false
	b.until = now.Add(spread(b.pause))
	b.isOpen.Store(true)
	b.told = b.logged.IsZero() || now.Sub(b.logged) >= logEvery
	if !b.told {
		return nil
	}
	b.logged = now
	return func() { b.opened(why) }
}

// again goes on with an open breaker whose trial has failed.
func (b *breaker) again() {
	b.number++ // the trial has nothing more to say
	b.trying, b.silent = false, false
	b.pause = min(2*b.pause, lastPause)
	b.until = time.Now().Add(spread(b.pause))
}

// shut closes the breaker. It returns what has to be told without the lock, if anything.
func (b *breaker) shut() (tell func()) {
	b.number++
	b.row, b.n, b.bad, b.trying, b.silent = 0, 0, 0, false, false
	b.isOpen.Store(false)
	if !b.told {
		return nil
	}
	open := time.Since(b.since)
	return func() { b.closed(open) }
}

// spread moves a pause by up to a fifth, so that nodes do not come at one time.
func spread(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}

// pulse watches whether any byte moves while requests wait. It is safe for concurrent use; the zero
// value with a limit and a function is ready.
type pulse struct {
	limit  time.Duration
	silent func()

	mu      sync.Mutex
	waiting int
	last    time.Time
	timer   *time.Timer
}

// add changes the number of requests that wait for the server.
func (p *pulse) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.waiting
	p.waiting += n
	switch {
	case before == 0 && p.waiting > 0:
		p.last = time.Now()
		if p.timer == nil {
			p.timer = time.AfterFunc(p.limit, p.look)
		} else {
			p.timer.Reset(p.limit)
		}
	case p.waiting == 0:
		p.timer.Stop()
	}
}

// beat says that bytes have moved.
func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
}

// look calls silent if nothing has moved within the limit.
func (p *pulse) look() {
	p.mu.Lock()
	left := p.limit - time.Since(p.last)
	quiet := p.waiting > 0 && left <= 0
	if p.waiting > 0 {
		if quiet {
			left = p.limit
		}
		p.timer.Reset(left)
	}
	p.mu.Unlock()
	if quiet {
		p.silent()
	}
}

// clock is the bucket's clock, by its answers. It is safe for concurrent use.
type clock struct {
	mu   sync.Mutex
	date time.Time // as the last answer said
	at   time.Time // when it came
}

func (c *clock) saw(date time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.date, c.at = date, time.Now()
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() {
		return time.Time{}
	}
	return c.date.Add(time.Since(c.at))
}

// skew is how far the bucket's clock is ahead. Here, where the wall clock of this node is what is
// wrong, it is what is compared: date has no monotonic reading.
func (c *clock) skew() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.date.Sub(c.at)
}
