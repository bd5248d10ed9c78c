package proxy

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/router/registry"
)

// A rank that fails is taken out, so that no client may make a rank seem to fail.
func TestNothingThatAClientSendsLooksLikeARanksFailure(t *testing.T) {
	f := newFront(t, 2, nil)
	for _, body := range []string{
		`{"prompt":[1],"conversation_id":"a\nb"}`, `{"prompt":[1],"session_id":"a\u0000"}`, `{"prompt":[1],"parent_conversation_id":"a\r\nX: y"}`, `{"prompt":[1],"session_id":5}`,
		`{"prompt":[1],"conversation_params":5}`, `{"prompt":[1],"conversation_params":{"conversation_id":"a\nb"}}`,
	} {
		if resp, got := f.post(t, body); resp.StatusCode != http.StatusBadRequest || !strings.Contains(got, "invalid_request") {
			t.Errorf("%s: %s %s", body, resp.Status, got)
		}
	}
	if resp, got := f.post(t, plain, PinHeader, "0", StrictHeader, "yes please"); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("%s %s", resp.Status, got)
	}
	for _, query := range []string{"?a=b", "?x#%zz", "?%zz", "?;&"} {
		if status := f.raw(t, query); !strings.Contains(status, "200") {
			t.Errorf("%s: %s", query, status)
		}
	}
	if resp, got := f.post(t, plain, PinHeader, "1", StrictHeader, "True"); resp.Header.Get(PinHeader) != "1" {
		t.Errorf("%s %s", resp.Status, got)
	}
	if len(f.failed) != 0 || f.proxy.Stats().Retries != 0 {
		t.Errorf("failed %v, %+v", f.failed, f.proxy.Stats())
	}
}

// raw sends a completion with any query and returns the status line.
func (f *rig) raw(t *testing.T, query string) string {
	t.Helper()
	c, err := net.Dial("tcp", f.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = fmt.Fprintf(c, "POST /v1/completions%s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", query, len(plain), plain)
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// closer is an engine that closes every connection when the second request on it comes.
func closer(t *testing.T) (url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				in := bufio.NewReader(c)
				req, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
				_, _ = in.Peek(1)
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

func TestAnEngineThatClosesAnIdleConnectionHasNotFailed(t *testing.T) {
	f := newFront(t, 1, nil)
	if err := f.router.Update(registry.Rank{ID: 0, Model: "m", Endpoint: closer(t)}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if resp, body := f.post(t, `{"prompt":[1]}`); resp.StatusCode != http.StatusOK {
			t.Errorf("%s %s", resp.Status, body)
		}
	}
	if len(f.failed) != 0 {
		t.Errorf("failed %v", f.failed)
	}
}

func TestAStreamThatStandsStillEndsWithAnError(t *testing.T) {
	// The limit is that of writes to the client, too: a machine that is busy may pass the first of them there.
	for _, limit := range []time.Duration{700 * time.Millisecond, 5 * time.Second, 30 * time.Second} {
		f := newFront(t, 1, func(o *Options) { o.IdleTimeout = limit })
		f.engines[0].Step = make(chan struct{}, 1)
		f.engines[0].Step <- struct{}{}
		resp, body := f.post(t, `{"stream":true,"prompt":[1]}`)
		f.idle(t)
		if resp.StatusCode == http.StatusOK && strings.Contains(body, "t0") && strings.Contains(body, "upstream_broke_off") && strings.Contains(body, "unexpected EOF") {
			return
		}
		t.Logf("limit %v: %s %q", limit, resp.Status, body)
	}
	t.Error("no error at the end of the stream")
}

// answer is an engine's answer of chunks with a pause before each.
type answer struct {
	status int // 0 means 200
	ctx    context.Context
	pause  time.Duration
	chunks int
}

func (a *answer) RoundTrip(r *http.Request) (*http.Response, error) {
	a.ctx = r.Context()
	return &http.Response{StatusCode: cmp.Or(a.status, http.StatusOK), Header: http.Header{}, Body: a}, nil
}

func (a *answer) Close() error { return nil }

func (a *answer) Read(b []byte) (int, error) {
	if a.chunks == 0 {
		return 0, io.EOF
	}
	a.chunks--
	select {
	case <-a.ctx.Done():
		return 0, a.ctx.Err()
	case <-time.After(a.pause):
		return copy(b, "data: x\n\n"), nil
	}
}

// slowClient is a client that takes its time to read.
type slowClient struct {
	*httptest.ResponseRecorder
	pause time.Duration
}

func (c slowClient) Write(b []byte) (int, error) {
	time.Sleep(c.pause)
	return c.ResponseRecorder.Write(b)
}

func (c slowClient) Unwrap() http.ResponseWriter { return c.ResponseRecorder }

func TestASlowClientIsNotItsRanksFailure(t *testing.T) {
	f := newFront(t, 1, nil)
	synctest.Test(t, func(t *testing.T) {
		o := f.proxy.opts
		o.Transport, o.IdleTimeout = &answer{pause: 40 * time.Second, chunks: 5}, time.Minute
		o.Failed = func(rank int32, err error) { t.Errorf("rank %d failed: %v", rank, err) }
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		w := slowClient{httptest.NewRecorder(), 50 * time.Second}
		p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(`{"stream":true,"prompt":[1]}`)))
		if s := p.Stats(); s.OK != 1 || strings.Count(w.Body.String(), "data: x") != 5 {
			t.Errorf("%+v %q", s, w.Body)
		}
	})
}

func TestARefusalThatIsLongIsCutInOrder(t *testing.T) {
	f := newFront(t, 1, nil)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100000")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, strings.Repeat("x", 100000))
	}))
	t.Cleanup(engine.Close)
	if err := f.router.Update(registry.Rank{ID: 0, Model: "m", Endpoint: engine.URL}); err != nil {
		t.Fatal(err)
	}
	if resp, body := f.post(t, `{"prompt":[1]}`); resp.StatusCode != http.StatusTooManyRequests || body != strings.Repeat("x", maxRefusal) {
		t.Errorf("%s, %d bytes, ends with %.50q", resp.Status, len(body), body[max(0, len(body)-50):])
	}
}

// A rank that refuses and then hangs does not keep the request from other ranks.
func TestARefusalThatDoesNotEndIsCutSoon(t *testing.T) {
	f := newFront(t, 1, nil)
	synctest.Test(t, func(t *testing.T) {
		o := f.proxy.opts
		o.Transport = &answer{status: http.StatusServiceUnavailable, pause: time.Hour, chunks: 1}
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		w, start := httptest.NewRecorder(), time.Now()
		p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":[1]}`)))
		if took := time.Since(start); w.Code != http.StatusServiceUnavailable || w.Header().Get(PinHeader) != "0" || took != refusalTimeout {
			t.Errorf("%d %v after %s", w.Code, w.Header(), took)
		}
	})
}

func TestAPromptThatIsTooLongIsRefused(t *testing.T) {
	f := newFront(t, 1, func(o *Options) { o.Reader.Tokens.MaxTokens = 3 })
	for _, body := range []string{`{"prompt":[1,2,3,4]}`, `{"prompt":"four"}`} {
		if resp, got := f.post(t, body); resp.StatusCode != http.StatusBadRequest || !strings.Contains(got, "prompt_too_long") {
			t.Errorf("%s: %s %s", body, resp.Status, got)
		}
	}
	if n := len(f.engines[0].Requests()); n != 0 {
		t.Errorf("%d requests reached the engine", n)
	}
}

func TestAKeyThatCannotBeSentIsRefused(t *testing.T) {
	f := newFront(t, 1, nil)
	o := f.proxy.opts
	o.EngineKey = "key\n"
	if _, err := New(o); err == nil {
		t.Error(err)
	}
}
