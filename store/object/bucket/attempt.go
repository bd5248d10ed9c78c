package bucket

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Kind is a kind of request, as it is counted and paid.
type Kind string

// The kinds of requests.
const (
	Get    Kind = "get"
	Put    Kind = "put"
	List   Kind = "list"
	Delete Kind = "delete"
	// Location asks where the bucket is.
	Location Kind = "location"
)

// attempt is one try of a request, until the last byte of its answer. It may need several requests: the
// bucket's region may be asked for first, and a list has pages.
type attempt struct {
	b      *Bucket
	kind   Kind
	ctx    context.Context
	cancel context.CancelCauseFunc
	pass   pass
	// total ends the attempt at its timeout.
	total *time.Timer
	ended sync.Once

	mu sync.Mutex
	// stall ends the attempt when no byte has moved for a time. It runs while the attempt is waiting
	// for the server and does not rest for a rate.
	stall            *time.Timer
	waiting, resting bool
	sent             int // requests
	// Of the last answer, or failure:
	status  int
	page    bool // the body is a page of HTML, or a text, or there is none where S3 says which object is missing
	date    time.Time
	pause   time.Duration // the server asks for
	failed  error
	written bool // a body was sent
}

type attemptKey struct{}

// newAttempt begins an attempt. It has to be ended.
func (b *Bucket) newAttempt(ctx context.Context, kind Kind, p pass) *attempt {
	a := &attempt{b: b, kind: kind, pass: p}
	ctx, a.cancel = context.WithCancelCause(ctx)
	a.ctx = context.WithValue(ctx, attemptKey{}, a)
	a.total = time.AfterFunc(b.opts.Timeout, func() { a.cancel(errSlow) })
	a.stall = time.AfterFunc(b.opts.Stall, func() { a.cancel(errStalled) })
	a.stall.Stop()
	return a
}

// end ends the attempt: what it waits for is broken off. Its first call counts the outcome: failed is
// nil for a success.
func (a *attempt) end(failed *Error) {
	a.ended.Do(func() {
		a.change(func() { a.waiting = false })
		a.total.Stop()
		a.cancel(errDone)
		if failed == nil {
			a.b.breaker.done(a.pass, good, nil)
			return
		}
		a.b.counts.failed(failed.Cause)
		a.b.breaker.done(a.pass, judge(a.kind, failed.Cause), failed)
	})
}

// change changes waiting or resting.
func (a *attempt) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.waiting && !a.resting
	f()
	after := a.waiting && !a.resting
	switch {
	case !before && after:
		a.stall.Reset(a.b.opts.Stall)
		a.b.pulse.add(1)
	case before && !after:
		a.stall.Stop()
		a.b.pulse.add(-1)
	}
}

// wait marks the time in which the attempt waits for the server.
func (a *attempt) wait(on bool) { a.change(func() { a.waiting = on }) }

// rest marks the time in which it waits for a rate.
func (a *attempt) rest(on bool) { a.change(func() { a.resting = on }) }

// beat says that bytes have moved.
func (a *attempt) beat() {
	a.mu.Lock()
	if a.waiting && !a.resting {
		a.stall.Reset(a.b.opts.Stall)
	}
	a.mu.Unlock()
	a.b.pulse.beat()
}

// request counts a request.
func (a *attempt) request(r *http.Request) {
	kind := a.kind
	if r.URL.Query().Has("location") {
		kind = Location
	}
	a.b.counts.request(kind)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent++
	a.status, a.page, a.pause, a.failed = 0, false, 0, nil
}

// note keeps what is of use in the head of an answer, or why there is none.
func (a *attempt) note(res *http.Response, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.failed = err
		return
	}
	a.status = res.StatusCode
	kind := res.Header.Get("Content-Type")
	blank := a.kind == Get && res.StatusCode == http.StatusNotFound && res.ContentLength == 0
	a.page = blank || strings.HasPrefix(kind, "text/html") || strings.HasPrefix(kind, "text/plain")
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		a.date = date
		a.b.clock.saw(date)
	}
	if s, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 16); err == nil {
		a.pause = time.Duration(s) * time.Second
	}
}

// head is the status of the last answer, 0 without one, and whether it is a page.
func (a *attempt) head() (status int, page bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status, a.page
}

// delivers reports whether the last answer is an object, or a part of one.
func (a *attempt) delivers() bool {
	status, _ := a.head()
	return a.kind == Get && (status == http.StatusOK || status == http.StatusPartialContent)
}

// failure is the error of the last request's connection.
func (a *attempt) failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// now is the bucket's clock at the last answer.
func (a *attempt) now() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.date
}

// asked is the pause that the server asked for.
func (a *attempt) asked() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pause
}

// unsure reports whether the server may have carried out a request that has failed: a part of its body
// was sent, and there was no answer that says otherwise.
func (a *attempt) unsure() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.written && (a.status == 0 || a.status >= http.StatusInternalServerError || a.status < http.StatusMultipleChoices)
}
