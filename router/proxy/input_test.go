package proxy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/registry"
)

func TestBadRequestsAreAnsweredWithACode(t *testing.T) {
	f := newFront(t, 1, func(o *Options) { o.Reader.MaxBodyBytes = 4096 })
	for _, c := range []struct {
		body, code string
		status     int
		header     []string
	}{
		{`{`, "invalid_request", 400, nil},
		{`[]`, "invalid_request", 400, nil},
		{`null`, "invalid_request", 400, nil},
		{`{"model":5}`, "invalid_request", 400, nil},
		{`{"model":"other","prompt":"x"}`, "model_not_found", 404, nil},
		{`{"prompt":"` + strings.Repeat("x", 5000) + `"}`, "body_too_large", 413, nil},
		{plain, "invalid_request", 400, []string{PinHeader, "x"}},
		{plain, "invalid_request", 400, []string{front.SessionHeader, strings.Repeat("s", 300)}},
		{plain, "pin_unknown", 404, []string{PinHeader, "9", StrictHeader, "true"}},
	} {
		resp, body := f.post(t, c.body, c.header...)
		if resp.StatusCode != c.status || !strings.Contains(body, `"code":"`+c.code+`"`) || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%.40s: %s %s, want %d %s", c.body, resp.Status, body, c.status, c.code)
		}
	}
	f.router.SetReady(0, false, "test")
	resp, body := f.post(t, plain)
	if resp.StatusCode != 503 || !strings.Contains(body, "no_ranks") || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%s %s", resp.Status, body)
	}
	f.idle(t)
}

func TestAFullRankIsSaidToBeFull(t *testing.T) {
	f := newFront(t, 1, nil)
	if err := f.router.Update(registry.Rank{ID: 0, Model: "m", Endpoint: f.engines[0].URL, MaxTokens: 3}); err != nil {
		t.Fatal(err)
	}
	for header, code := range map[string]string{"": "all_full", "0": "pin_full"} {
		var headers []string
		if header != "" {
			headers = []string{PinHeader, header, StrictHeader, "true"}
		}
		if resp, body := f.post(t, plain, headers...); resp.StatusCode != 503 || !strings.Contains(body, code) {
			t.Errorf("%s %s, want %s", resp.Status, body, code)
		}
	}
}

func TestWithoutATokenizerLoadDecidesAndTheAnswerSaysSo(t *testing.T) {
	for _, mode := range []enginetest.Mode{enginetest.Fail, enginetest.Hang} {
		f := newFront(t, 1, func(o *Options) { o.Reader.Tokens.Timeout = 100 * time.Millisecond })
		f.engines[0].SetTokenize(mode)
		resp, body := f.post(t, plain)
		if resp.StatusCode != http.StatusOK || !strings.Contains(body, "hello") || !strings.Contains(resp.Header.Get(NoteHeader), "routed by load") {
			t.Errorf("%s %v %s", resp.Status, resp.Header, body)
		}
		f.idle(t)
		if s := f.proxy.Stats(); s.Untokenized != 1 || s.OK != 1 {
			t.Errorf("%+v", s)
		}
	}
}

// What the router does not understand is the engine's to refuse.
func TestAPromptOfNoKnownFormGoesToTheEngine(t *testing.T) {
	f := newFront(t, 1, nil)
	f.engines[0].Set(enginetest.Reject)
	resp, body := f.post(t, `{"model":"m","prompt":{"x":1}}`)
	if resp.StatusCode != 400 || !strings.Contains(body, "bad prompt") {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestConversationsAreNamedByHeaderOrBody(t *testing.T) {
	f := newFront(t, 1, nil)
	for _, c := range []struct{ body, header, want string }{
		{`{"prompt":"x","conversation_id":"a"}`, "", "a"},
		{`{"prompt":"x","session_id":"b"}`, "", "b"},
		{`{"prompt":"x","conversation_params":{"conversation_id":"d"}}`, "", "d"},
		{`{"prompt":"x","conversation_id":"a"}`, "c", "c"},
	} {
		f.post(t, c.body, front.SessionHeader, c.header)
		got := f.engines[0].Requests()
		if v := got[len(got)-1].Header.Get(front.SessionHeader); v != c.want {
			t.Errorf("%s %s: %q", c.body, c.header, v)
		}
	}
}
