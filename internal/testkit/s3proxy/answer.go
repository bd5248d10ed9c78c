package s3proxy

import (
	"net/http"
	"slices"
	"strconv"
)

// answer is the way of an answer back to the client.
type answer struct {
	http.ResponseWriter
	*action
	r       *http.Request
	begun   bool
	written int64
	length  int64 // of the body, if the server says so
	bits    map[int64]byte
}

// Unwrap is what http.ResponseController looks for: answers that are flushed are flushed to the client.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader sends the head of the answer.
func (a *answer) WriteHeader(status int) {
	if a.begun {
		return
	}
	a.begun = true
	h := a.Header()
	if date, err := http.ParseTime(h.Get("Date")); err == nil && a.Skew != 0 {
		h.Set("Date", date.Add(a.Skew).UTC().Format(http.TimeFormat))
	}
	a.length, _ = strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	a.bits = a.flips(a.length)
	a.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the body.
func (a *answer) Write(b []byte) (int, error) {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	if len(a.bits) > 0 {
		b = slices.Clone(b)
		flip(b, a.written, a.bits)
	}
	end := a.written + int64(len(b))
	if middle := a.length / 2; a.Stall > 0 && a.written <= middle && end > middle && (a.Cut == 0 || a.Cut > middle) {
		n, err := a.pass(b[:middle-a.written])
		if err != nil {
			return n, err
		}
		stall := a.Stall
		a.Stall = 0
		a.wait(a.r, stall)
		more, err := a.Write(b[n:])
		return n + more, err
	}
	if a.Cut > 0 && end > a.Cut {
		_, _ = a.pass(b[:a.Cut-a.written])
		panic(http.ErrAbortHandler)
	}
	return a.pass(b)
}

// pass sends bytes to the client, now.
func (a *answer) pass(b []byte) (int, error) {
	n, err := a.ResponseWriter.Write(b)
	a.written += int64(n)
	if a.Stall > 0 || a.Cut > 0 {
		_ = http.NewResponseController(a.ResponseWriter).Flush() // without it there is no buffer
	}
	return n, err
}
