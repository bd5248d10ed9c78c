package s3proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/bits"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
)

// got is what a client saw of an answer.
type got struct {
	status int
	body   []byte
	date   string
	err    error
	took   time.Duration
}

// ask sends a request over a transport and reads the whole answer.
func ask(t *testing.T, over http.RoundTripper, method, target, body string, headers ...string) (g got) {
	t.Helper()
	began := time.Now()
	defer func() { g.took = time.Since(began) }()
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	res, err := over.RoundTrip(r)
	if err != nil {
		return got{err: err}
	}
	defer res.Body.Close()
	g.status, g.date = res.StatusCode, res.Header.Get("Date")
	g.body, g.err = io.ReadAll(res.Body)
	return g
}

// setup makes a proxy before a server in memory that has one object.
func setup(t *testing.T) (*Proxy, http.RoundTripper, *s3mem.Server) {
	t.Helper()
	server := s3mem.New(s3mem.Options{}, "bucket")
	p := New(server)
	over := Direct(p)
	if g := ask(t, over, "PUT", "http://s3/bucket/d/a", "0123456789"); g.err != nil || g.status != 200 {
		t.Fatalf("%+v", g)
	}
	return p, over, server
}

const object = "http://s3/bucket/d/a"

func TestNothingIsChangedWithoutAScript(t *testing.T) {
	p, over, _ := setup(t)
	for range 2 {
		if g := ask(t, over, "GET", object, "", "Range", "bytes=2-4"); g.err != nil || g.status != 206 || string(g.body) != "234" {
			t.Errorf("%+v", g)
		}
		p.Play(Clause{On: Put, Do: Effect{Reset: true}}, Clause{Name: "e/**", Do: Effect{Reset: true}})
	}
	if g := ask(t, over, "HEAD", object, ""); g.err != nil || g.status != 200 || len(g.body) != 0 {
		t.Errorf("%+v", g)
	}
	if p.Injected() != 0 {
		t.Errorf("%d requests were acted on", p.Injected())
	}
}

func TestCountsSelectRequests(t *testing.T) {
	p, over, _ := setup(t)
	p.Play(Clause{On: Get, Name: "d/*", After: 1, For: 2, Every: 2, Do: Effect{Status: 503, Code: "SlowDown"}})
	var all []int
	for range 7 {
		all = append(all, ask(t, over, "GET", object, "").status)
	}
	if want := []int{200, 200, 503, 200, 503, 200, 200}; !slices.Equal(all, want) {
		t.Errorf("%v, want %v", all, want)
	}
}

func TestAnswersOfTheScript(t *testing.T) {
	p, over, server := setup(t)
	before := server.Counts().Requests()
	p.Play(Clause{Do: Effect{Status: 403, Code: "ExpiredToken"}})
	if g := ask(t, over, "GET", object, ""); g.status != 403 || !bytes.Contains(g.body, []byte("<Code>ExpiredToken</Code>")) || g.date == "" {
		t.Errorf("%+v", g)
	}
	p.Play(Clause{Do: Effect{Page: 404}})
	if g := ask(t, over, "GET", object, ""); g.status != 404 || !bytes.Contains(g.body, []byte("<html>")) {
		t.Errorf("%+v", g)
	}
	p.Play(Clause{Do: Effect{Reset: true}})
	if g := ask(t, over, "GET", object, ""); !errors.Is(g.err, syscall.ECONNRESET) {
		t.Errorf("%+v", g)
	}
	if after := server.Counts().Requests(); after != before {
		t.Errorf("%d requests reached the server", after-before)
	}
}

func TestALostAnswerIsOfARequestThatWasDone(t *testing.T) {
	p, over, server := setup(t)
	p.Play(Clause{On: Put, For: 1, Do: Effect{Lost: true}})
	if g := ask(t, over, "PUT", "http://s3/bucket/d/b", "b"); g.err == nil {
		t.Errorf("%+v", g)
	}
	if g := ask(t, over, "GET", "http://s3/bucket/d/b", ""); string(g.body) != "b" || server.Counts().Put != 2 {
		t.Errorf("%+v, %+v", g, server.Counts())
	}
}

func TestBodiesAreCutAndChanged(t *testing.T) {
	p, over, _ := setup(t)
	p.Play(Clause{Do: Effect{Cut: 4}})
	if g := ask(t, over, "GET", object, ""); string(g.body) != "0123" || !errors.Is(g.err, io.ErrUnexpectedEOF) {
		t.Errorf("%+v", g)
	}
	p.Play(Clause{Do: Effect{Whole: true}})
	if g := ask(t, over, "GET", object, "", "Range", "bytes=2-4"); g.status != 200 || string(g.body) != "0123456789" {
		t.Errorf("%+v", g)
	}
	flips := func(b []byte) (n int) {
		for i := range b {
			n += bits.OnesCount8(b[i] ^ "0123456789"[i])
		}
		return n
	}
	p.Play(Clause{On: Get, Do: Effect{Flip: 1}})
	if g := ask(t, over, "GET", object, ""); g.err != nil || len(g.body) != 10 || flips(g.body) != 1 {
		t.Errorf("%+v", g)
	}
	p.Play(Clause{On: Put, Do: Effect{Flip: 1}})
	ask(t, over, "PUT", object, "0123456789")
	if g := ask(t, over, "GET", object, ""); len(g.body) != 10 || flips(g.body) != 1 {
		t.Errorf("%+v", g)
	}
}

func TestDelaysStallsAndSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, over, _ := setup(t)
		p.Play(Clause{Do: Effect{Delay: time.Minute}}, Clause{Do: Effect{Stall: time.Second}}, Clause{Do: Effect{Skew: time.Hour}})
		want := time.Now().Add(time.Hour + time.Minute).UTC().Format(http.TimeFormat)
		if g := ask(t, over, "GET", object, ""); g.err != nil || string(g.body) != "0123456789" || g.took != time.Minute+time.Second || g.date != want {
			t.Errorf("%+v, want %s", g, want)
		}
	})
}

func TestWaitsEndWithTheScriptAndWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, over, _ := setup(t)
		p.Play(Clause{Do: Effect{Delay: time.Hour}})
		stop := time.AfterFunc(time.Second, p.Stop)
		defer stop.Stop()
		if g := ask(t, over, "GET", object, ""); g.err != nil || g.took != time.Second {
			t.Errorf("%+v", g)
		}
		p.Play(Clause{Do: Effect{Stall: time.Hour}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, "GET", object, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := over.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if b, err := io.ReadAll(res.Body); !errors.Is(err, context.DeadlineExceeded) || string(b) != "01234" {
			t.Errorf("%q, %v", b, err)
		}
	})
}

func TestThrottling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, over, _ := setup(t)
		p.Play(Clause{On: Get, Do: Effect{Rate: 2}})
		var all []int
		for range 5 {
			all = append(all, ask(t, over, "GET", object, "").status)
			time.Sleep(300 * time.Millisecond)
		}
		if want := []int{200, 200, 503, 503, 200}; !slices.Equal(all, want) {
			t.Errorf("%v, want %v", all, want)
		}
	})
}

// The same over sockets: the proxy is a server, and its server another.
func TestOverSockets(t *testing.T) {
	server := httptest.NewServer(s3mem.New(s3mem.Options{}, "bucket"))
	defer server.Close()
	to, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := New(To(to))
	front := httptest.NewServer(p)
	defer front.Close()
	over := &http.Transport{DisableKeepAlives: true}
	target := front.URL + "/bucket/d/a"
	if g := ask(t, over, "PUT", target, "0123456789"); g.err != nil || g.status != 200 {
		t.Fatalf("%+v", g)
	}
	if g := ask(t, over, "GET", target, "", "Range", "bytes=2-4"); g.err != nil || g.status != 206 || string(g.body) != "234" {
		t.Errorf("%+v", g)
	}
	p.Play(Clause{Do: Effect{Cut: 4}})
	if g := ask(t, over, "GET", target, ""); string(g.body) != "0123" || !errors.Is(g.err, io.ErrUnexpectedEOF) {
		t.Errorf("%+v", g)
	}
	p.Play(Clause{Do: Effect{Reset: true}})
	if g := ask(t, over, "GET", target, ""); !errors.Is(g.err, syscall.ECONNRESET) {
		t.Errorf("%+v", g)
	}
	p.Play(Clause{Do: Effect{Status: 503, Code: "SlowDown"}})
	if g := ask(t, over, "GET", target, ""); g.err != nil || g.status != 503 {
		t.Errorf("%+v", g)
	}
	p.Stop()
	server.Close()
	if g := ask(t, over, "GET", target, ""); g.err != nil || g.status != 502 {
		t.Errorf("%+v", g)
	}
}
