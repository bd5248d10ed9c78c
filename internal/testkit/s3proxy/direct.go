package s3proxy

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"syscall"
)

// Direct is a transport that calls a handler in a goroutine of its own, with no socket between: in a
// bubble of testing/synctest all waits of client and server are waits of the bubble. An answer's body
// has no buffer: the handler writes as the client reads. A handler that panics with
// [http.ErrAbortHandler] is a connection that is reset.
func Direct(h http.Handler) http.RoundTripper { return direct{h} }

type direct struct{ handler http.Handler }

// RoundTrip sends one request.
func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	in := r.Clone(ctx)
	in.RequestURI, in.RemoteAddr = r.URL.RequestURI(), "direct"
	in.URL.Scheme, in.URL.Host = "", ""
	if in.Host == "" {
		in.Host = r.URL.Host
	}
	if in.Body == nil {
		in.Body = http.NoBody
	}
	body, pipe := io.Pipe()
	w := &wire{method: r.Method, gone: ctx.Err, header: make(http.Header), pipe: pipe, begun: make(chan struct{}), length: -1}
	go func() {
		defer func() {
			_ = in.Body.Close()
			w.end(recover())
		}()
		d.handler.ServeHTTP(w, in)
	}()
	select {
	case <-w.begun:
	case <-ctx.Done():
		cancel()
		_ = pipe.CloseWithError(ctx.Err())
		return nil, ctx.Err()
	}
	if w.failed != nil {
		cancel()
		return nil, w.failed
	}
	res := &http.Response{
		StatusCode: w.status, Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, ContentLength: w.length, Request: r,
	}
	// A client that leaves breaks off the body.
	stop := context.AfterFunc(ctx, func() { _ = pipe.CloseWithError(ctx.Err()) })
	res.Body = &received{PipeReader: body, left: func() { stop(); cancel() }}
	return res, nil
}

// received is the body of an answer.
type received struct {
	*io.PipeReader
	left func()
}

func (b *received) Close() error {
	b.left()
	return b.PipeReader.Close()
}

// wire carries an answer from the handler to the client.
type wire struct {
	method string
	gone   func() error // not nil once the client has left
	header http.Header
	pipe   *io.PipeWriter

	begin sync.Once
	begun chan struct{} // closed when the fields below are set
	// failed is set if there is no answer.
	failed  error
	status  int
	sent    http.Header
	length  int64 // -1: not said
	written int64
}

func (w *wire) Header() http.Header { return w.header }

func (w *wire) WriteHeader(status int) {
	w.begin.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		if n, err := strconv.ParseInt(w.header.Get("Content-Length"), 10, 64); err == nil {
			w.length = n
		}
		close(w.begun)
	})
}

func (w *wire) bodiless() bool {
	return w.method == http.MethodHead || w.status == http.StatusNoContent || w.status == http.StatusNotModified
}

func (w *wire) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.bodiless() {
		return len(b), nil
	}
	if err := w.gone(); err != nil {
		_ = w.pipe.CloseWithError(err)
		return 0, err
	}
	n, err := w.pipe.Write(b)
	w.written += int64(n)
	return n, err
}

// end ends the answer when the handler has returned, or has panicked with a value.
func (w *wire) end(panicked any) {
	switch {
	case panicked != nil && panicked != http.ErrAbortHandler:
		panic(panicked)
	case panicked != nil:
		w.begin.Do(func() {
			w.failed = cmp.Or(w.gone(), error(syscall.ECONNRESET))
			close(w.begun)
		})
		_ = w.pipe.CloseWithError(cmp.Or(w.gone(), io.ErrUnexpectedEOF))
		return
	}
	w.WriteHeader(http.StatusOK)
	if w.written < w.length && !w.bodiless() {
		_ = w.pipe.CloseWithError(io.ErrUnexpectedEOF)
		return
	}
	_ = w.pipe.Close()
}
