package httpserve

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// serve starts a server whose only request hangs until it is released. It returns its URL and its end.
func serve(t *testing.T, grace time.Duration, draining func()) (url string, started, release chan struct{}, cancel context.CancelFunc, ended chan bool) {
	t.Helper()
	started, release, ended = make(chan struct{}), make(chan struct{}), make(chan bool, 1)
	h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(started)
		select {
		case <-release:
		case <-r.Context().Done():
		}
		WriteJSON(w, http.StatusAccepted, []int{1}, "")
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		cut, err := Serve(ctx, h, l, grace, draining)
		if err != nil {
			t.Error(err)
		}
		ended <- cut
	}()
	return "http://" + l.Addr().String(), started, release, cancel, ended
}

func TestRequestsUnderWayEndBeforeTheServer(t *testing.T) {
	draining := make(chan struct{})
	url, started, release, cancel, ended := serve(t, time.Hour, func() { close(draining) })
	answer := make(chan string, 1)
	go func() {
		resp, err := http.Get(url)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer func() { _ = resp.Body.Close() }()
		b, _ := io.ReadAll(resp.Body)
		answer <- resp.Status + " " + resp.Header.Get("Content-Type") + " " + resp.Header.Get("Cache-Control") + " " + string(b)
	}()
	<-started
	cancel()
	<-draining
	close(release)
	if got := <-answer; got != "202 Accepted application/json no-store [1]\n" {
		t.Error(got)
	}
	if <-ended {
		t.Error("a request was cut off")
	}
}

func TestRequestsThatDoNotEndAreCutOff(t *testing.T) {
	url, started, _, cancel, ended := serve(t, time.Millisecond, nil)
	failed := make(chan error, 1)
	go func() {
		resp, err := http.Get(url)
		if err == nil {
			_ = resp.Body.Close()
		}
		failed <- err
	}()
	<-started
	cancel()
	if !<-ended {
		t.Error("no request was cut off")
	}
	if err := <-failed; err == nil {
		t.Error("the client has an answer")
	}
}

// bounded is an answer whose deadline is known.
type bounded struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (b *bounded) SetWriteDeadline(t time.Time) error { b.deadline = t; return nil }

func TestAnAnswerThatNobodyReadsEnds(t *testing.T) {
	w := &bounded{ResponseRecorder: httptest.NewRecorder()}
	WriteJSON(w, http.StatusOK, nil, "")
	if w.deadline.IsZero() {
		t.Error("an answer has no deadline")
	}
}

func TestAListenerThatFailsIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if _, err := Serve(t.Context(), &http.Server{}, l, time.Second, nil); err == nil {
		t.Error("no error")
	}
}
