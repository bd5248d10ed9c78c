package bucket

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"golang.org/x/time/rate"
)

const (
	// chunkBytes is what a body with a rate is moved by.
	chunkBytes = 64 << 10
	// maxAnswerBytes bounds bodies that are not objects: a page of a list has 1,000 names of at most
	// 1,024 bytes, and a byte takes three when it is sent.
	maxAnswerBytes = 8 << 20
)

var errLongAnswer = fmt.Errorf("an answer of more than %d bytes", maxAnswerBytes)

// wire is the transport that the library uses: it counts requests and bytes, keeps to rates, and tells
// the attempt what moves.
type wire struct{ b *Bucket }

// RoundTrip implements [http.RoundTripper].
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	a, ok := r.Context().Value(attemptKey{}).(*attempt)
	if !ok {
		return nil, errors.New("a request of the library without an attempt")
	}
	a.request(r)
	a.wait(true)
	res, err := w.b.transport.RoundTrip(r)
	a.wait(false)
	a.note(res, err)
	if err != nil {
		return nil, err
	}
	a.b.pulse.beat()
	res.Body = &received{ReadCloser: res.Body, a: a, object: a.kind == Get && res.StatusCode < http.StatusMultipleChoices, left: maxAnswerBytes}
	return res, nil
}

// received is the body of an answer.
type received struct {
	io.ReadCloser
	a *attempt
	// object says that the body is that of an object; else left is how much more it may have.
	object bool
	left   int
}

func (r *received) Read(b []byte) (int, error) {
	limit := r.a.b.down
	switch {
	case r.object && limit != nil:
		b = b[:min(len(b), chunkBytes)]
	case !r.object && r.left == 0:
		return 0, errLongAnswer
	case !r.object:
		b = b[:min(len(b), r.left)]
	}
	r.a.wait(true)
	n, err := r.ReadCloser.Read(b)
	r.a.wait(false)
	if n > 0 {
		r.a.b.pulse.beat()
	}
	if !r.object {
		r.left -= n
		return n, err
	}
	r.a.b.counts.read(n)
	if limit != nil && n > 0 {
		if wait := r.a.take(limit, n); wait != nil && err == nil {
			err = wait
		}
	}
	return n, err
}

// take waits until a rate has room for bytes. If the deadline would come first the attempt ends.
func (a *attempt) take(limit *rate.Limiter, n int) error {
	err := limit.WaitN(a.ctx, n)
	if err != nil && a.ctx.Err() == nil {
		a.cancel(errRate)
		return errRate
	}
	return err
}

// upload is the body of one attempt of a Put. The connection may ask for bytes after the request has
// failed; then the data belong to the caller, or to the next attempt, and there are none.
type upload struct {
	a *attempt

	mu    sync.Mutex
	data  io.Reader
	ended bool
}

func (u *upload) Read(b []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return 0, errDone
	}
	limit := u.a.b.up
	if limit != nil {
		b = b[:min(len(b), chunkBytes)]
	}
	n, err := u.data.Read(b)
	u.a.moved(n)
	if limit != nil && n > 0 {
		u.a.rest(true)
		wait := u.a.take(limit, n)
		u.a.rest(false)
		if wait != nil {
			return 0, wait
		}
	}
	return n, err
}

// moved counts bytes that go to the server. That the connection takes them says that those before
// have left.
func (a *attempt) moved(n int) {
	a.beat()
	if n > 0 {
		a.b.counts.wrote(n)
		a.mu.Lock()
		a.written = true
		a.mu.Unlock()
	}
}

// end takes the data from the connection. The attempt's context has to be at its end, or the body sent.
func (u *upload) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
}
