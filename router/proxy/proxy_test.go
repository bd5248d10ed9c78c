package proxy

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/tokenize"
)

// rig is a proxy in front of engines, each rank's id its place.
type rig struct {
	*httptest.Server
	proxy   *Proxy
	router  *route.Router
	engines []*enginetest.Engine

	mu     sync.Mutex
	failed []int32
}

func newFront(t *testing.T, engines int, change func(*Options)) *rig {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	router, err := route.New(route.Options{AssumeReady: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(router.Close)
	f := &rig{router: router}
	for i := range engines {
		e := enginetest.New(t, "m")
		f.engines = append(f.engines, e)
		if err := router.Add(registry.Rank{ID: int32(i), Model: "m", Endpoint: e.URL, DPMode: registry.Internal, DPRank: i}); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{
		Router: router, Logger: quiet,
		Reader: &front.Reader{
			Tokens:  &tokenize.Client{HTTP: http.DefaultClient, Timeout: 20 * time.Second, MaxTokens: 1 << 20},
			Engines: func(string) []string { return []string{f.engines[0].URL} }, MaxBodyBytes: 64 << 20,
		},
		Failed: func(rank int32, _ error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failed = append(f.failed, rank)
		},
	}
	if change != nil {
		change(&o)
	}
	if f.proxy, err = New(o); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/completions", f.proxy)
	mux.Handle("POST /v1/chat/completions", f.proxy)
	mux.Handle("/v1/", f.proxy.Others())
	f.Server = httptest.NewServer(mux)
	f.Config.ErrorLog = nil
	t.Cleanup(f.Close)
	return f
}

// post sends a completion with headers given in pairs.
func (f *rig) post(t *testing.T, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.URL+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		b = append(b, "|"+err.Error()...)
	}
	return resp, string(b)
}

// idle waits until nothing is in flight.
func (f *rig) idle(t *testing.T) {
	t.Helper()
	wait.For(t, "no requests in flight", func() bool {
		return f.router.Stats().InFlight == 0 && f.proxy.Stats().InFlight == 0
	})
}

const plain = `{"model":"m","prompt":"the quick brown fox"}`

func TestRequestsReachTheRankWithItsHeaders(t *testing.T) {
	f := newFront(t, 2, func(o *Options) { o.EngineKey = "engine-key" })
	resp, body := f.post(t, plain, PinHeader, "1", front.SessionHeader, "conv", "Authorization", "Bearer client", "Connection", "X-Drop", "X-Drop", "1", "X-Keep", "1", registry.RankHeader, "7", registry.OverrideHeader, "7")
	if resp.StatusCode != http.StatusOK || !strings.Contains(body, "hello") || resp.Header.Get("X-Hop") != "" ||
		resp.Header.Get(PinHeader) != "1" || resp.Header.Get(ReasonHeader) != "pin" || resp.Header.Get(NoteHeader) != "" {
		t.Fatalf("%s %v %s", resp.Status, resp.Header, body)
	}
	got := f.engines[1].Requests()
	if len(got) != 1 || got[0].Body != plain {
		t.Fatalf("%+v", got)
	}
	for name, want := range map[string]string{
		registry.RankHeader: "1", front.SessionHeader: "conv", "Authorization": "Bearer engine-key", "X-Drop": "", "X-Keep": "1",
		PinHeader: "", "X-Forwarded-For": "127.0.0.1", registry.OverrideHeader: "",
	} {
		if v := got[0].Header.Get(name); v != want {
			t.Errorf("%s: %q, want %q", name, v, want)
		}
	}
	f.idle(t)
	if s := f.proxy.Stats(); s.OK != 1 || s.Retries != 0 {
		t.Errorf("%+v", s)
	}
}

func TestTurnsOfAPromptStayWhereItsPrefixIs(t *testing.T) {
	f := newFront(t, 3, nil)
	prompt := strings.Repeat("all work and no play ", 40)
	var rank string
	for turn := range 4 {
		resp, _ := f.post(t, `{"model":"m","prompt":"`+prompt+`"}`)
		if turn > 0 && (resp.Header.Get(PinHeader) != rank || resp.Header.Get(CachedHeader) == "0") {
			t.Errorf("turn %d: %v, want rank %s", turn, resp.Header, rank)
		}
		rank = resp.Header.Get(PinHeader)
		prompt += "and more of it, again and again "
	}
}

func TestStreamsArePassedOnAsTheyCome(t *testing.T) {
	f := newFront(t, 1, nil)
	f.engines[0].Step = make(chan struct{})
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, f.URL+"/v1/chat/completions", strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
	go func() { f.engines[0].Step <- struct{}{} }()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	var got []string
	for lines.Scan() {
		if lines.Text() == "" {
			continue
		}
		got = append(got, lines.Text())
		if n := len(got); n < 4 { // the next one comes only now
			if info, _ := f.router.Rank(0); n == 1 && (info.Load.ActiveRequests != 1 || info.Load.QueuedRequests != 0) {
				t.Errorf("after the first byte: %+v", info.Load)
			}
			f.engines[0].Step <- struct{}{}
		}
	}
	if len(got) != 5 || got[4] != "data: [DONE]" || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%q", got)
	}
	f.idle(t)
}

func TestAnotherRankIsTriedBeforeTheFirstByte(t *testing.T) {
	for _, mode := range []enginetest.Mode{enginetest.Refuse, enginetest.Die} {
		f := newFront(t, 2, nil)
		f.engines[0].Set(mode)
		resp, body := f.post(t, plain, PinHeader, "0")
		if resp.StatusCode != http.StatusOK || resp.Header.Get(PinHeader) != "1" || !strings.Contains(body, "hello") {
			t.Errorf("mode %d: %s %v %s", mode, resp.Status, resp.Header, body)
		}
		f.idle(t)
		if s := f.proxy.Stats(); s.OK != 1 || s.Retries != 1 || (len(f.failed) == 1) != (mode == enginetest.Die) {
			t.Errorf("mode %d: %+v, failed %v", mode, s, f.failed)
		}
	}
}

// The rank dies between the decision and the request.
func TestARankThatIsGoneCostsATry(t *testing.T) {
	f := newFront(t, 2, nil)
	f.engines[1].Close()
	if resp, _ := f.post(t, plain, PinHeader, "1"); resp.StatusCode != http.StatusOK || resp.Header.Get(PinHeader) != "0" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
	if len(f.failed) != 1 || f.failed[0] != 1 {
		t.Errorf("failed %v", f.failed)
	}
	f.engines[0].CloseClientConnections()
	f.engines[0].Close()
	if resp, body := f.post(t, plain); resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, "upstream_failed") {
		t.Errorf("%s %s", resp.Status, body)
	}
	if resp, body := f.post(t, plain, PinHeader, "1", StrictHeader, "true"); resp.StatusCode != http.StatusBadGateway || len(f.failed) != 4 {
		t.Errorf("%s %s, failed %v", resp.Status, body, f.failed)
	}
	f.idle(t)
}

func TestClientsMistakesAreNotTriedAgain(t *testing.T) {
	for _, mode := range []enginetest.Mode{enginetest.Reject, enginetest.Fail} {
		f := newFront(t, 2, nil)
		f.engines[0].Set(mode)
		f.engines[1].Set(mode)
		resp, body := f.post(t, plain)
		if resp.StatusCode < 400 || !strings.Contains(body, "message") || f.proxy.Stats().Retries != 0 {
			t.Errorf("mode %d: %s %s %+v", mode, resp.Status, body, f.proxy.Stats())
		}
		f.idle(t)
	}
}

func TestWhenAllRefuseTheClientGetsTheRefusal(t *testing.T) {
	f := newFront(t, 2, nil)
	for _, e := range f.engines {
		e.Set(enginetest.Refuse)
	}
	if resp, body := f.post(t, plain); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "overloaded") {
		t.Errorf("%s %s", resp.Status, body)
	}
	f.idle(t)
	if s := f.proxy.Stats(); s.Failed != 1 || s.Retries != 2 {
		t.Errorf("%+v", s)
	}
}

func TestAStreamThatBreaksOffDoesNotLookComplete(t *testing.T) {
	f := newFront(t, 2, nil)
	f.engines[0].Set(enginetest.DieMidStream)
	resp, body := f.post(t, `{"model":"m","stream":true,"prompt":"x"}`, PinHeader, "0")
	if resp.StatusCode != http.StatusOK || !strings.Contains(body, "t1") || strings.Contains(body, "[DONE]") ||
		!strings.Contains(body, "upstream_broke_off") || !strings.Contains(body, "unexpected EOF") {
		t.Errorf("%s %q", resp.Status, body)
	}
	f.idle(t)
	if s := f.proxy.Stats(); s.Broken != 1 || s.Retries != 0 || len(f.engines[1].Requests()) != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAClientThatLeavesEndsTheRequestOnTheEngine(t *testing.T) {
	f := newFront(t, 1, nil)
	f.engines[0].Set(enginetest.Hang)
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, f.URL+"/v1/completions", strings.NewReader(plain))
	go func() {
		wait.For(t, "the engine's request", func() bool { return len(f.engines[0].Requests()) == 1 })
		cancel()
	}()
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Error("an answer")
	}
	wait.For(t, "the end on the engine", func() bool { return f.engines[0].Gone() == 1 })
	f.idle(t)
	if s := f.proxy.Stats(); s.Left != 1 {
		t.Errorf("%+v", s)
	}
}

func TestASilentRankCostsATryInTime(t *testing.T) {
	// A machine that is busy may keep the other rank from answering in the first of the times.
	var resp *http.Response
	for _, limit := range []time.Duration{300 * time.Millisecond, 3 * time.Second, 30 * time.Second} {
		f := newFront(t, 2, func(o *Options) { o.FirstByteTimeout = limit })
		f.engines[0].Set(enginetest.Hang)
		resp, _ = f.post(t, plain, PinHeader, "0")
		f.idle(t)
		if resp.StatusCode == http.StatusOK {
			break
		}
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get(PinHeader) != "1" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
}
