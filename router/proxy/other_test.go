package proxy

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/registry"
)

// ask makes a request for any path.
func (f *rig) ask(t *testing.T, method, path, contentType, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// another adds a rank of another model.
func (f *rig) another(t *testing.T, id int32, model string) *enginetest.Engine {
	t.Helper()
	e := enginetest.New(t, model)
	if err := f.router.Add(registry.Rank{ID: id, Model: model, Endpoint: e.URL}); err != nil {
		t.Fatal(err)
	}
	return e
}

func form(t *testing.T, model string) (contentType, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	file, err := w.CreateFormFile("file", "a.wav")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.Write(bytes.Repeat([]byte("\r\n--x"), 1000))
	_ = w.WriteField("model", model)
	_ = w.Close()
	return w.FormDataContentType(), b.String()
}

func TestOtherPathsReachAnEngineOfTheirModel(t *testing.T) {
	f := newFront(t, 1, nil)
	other := f.another(t, 5, "m2")
	const asJSON = "application/json"
	formType, formBody := form(t, "m2")
	for _, c := range []struct {
		method, path, contentType, body string
		engine                          *enginetest.Engine
	}{
		{"POST", "/v1/embeddings", asJSON, `{"model":"m","input":"x"}`, f.engines[0]},
		{"POST", "/v1/embeddings", asJSON, `{"model":"m2","input":"x"}`, other},
		{"POST", "/v1/messages?beta=true", asJSON, `{"model":"m2","messages":[{"role":"user","content":"x"}]}`, other},
		{"POST", "/v1/audio/transcriptions", formType, formBody, other},
		{"GET", "/v1/responses/resp_1?model=m2", "", "", other},
		{"DELETE", "/v1/files/a%2Fb%3Fc?model=m", "", "", f.engines[0]},
	} {
		before := len(c.engine.Requests())
		resp, body := f.ask(t, c.method, c.path, c.contentType, c.body)
		got := c.engine.Requests()
		if resp.StatusCode != 200 || len(got) != before+1 {
			t.Errorf("%s %s: %s %s", c.method, c.path, resp.Status, body)
			continue
		}
		if last := got[before]; last.Method != c.method || last.URI != c.path || last.Body != c.body || resp.Header.Get(PinHeader) == "" {
			t.Errorf("%s %s: the engine got %s %s %q", c.method, c.path, last.Method, last.URI, last.Body)
		}
	}
	f.idle(t) // counts come after answers
	if s := f.proxy.Stats(); s.OK != 6 || s.Others != 6 || s.Untokenized != 0 {
		t.Errorf("%+v", s)
	}
}

func TestOtherPathsAreSpreadAndTriedElsewhereAndPinned(t *testing.T) {
	f := newFront(t, 2, nil)
	const path, body = "/v1/responses", `{"model":"m","input":"x"}`
	if resp, _ := f.ask(t, "POST", path, "application/json", body, PinHeader, "1", StrictHeader, "true"); resp.Header.Get(PinHeader) != "1" {
		t.Errorf("pinned to 1, answered by %q", resp.Header.Get(PinHeader))
	}
	f.engines[0].Set(enginetest.Refuse)
	for range 4 {
		if resp, text := f.ask(t, "POST", path, "application/json", body, PinHeader, "0"); resp.StatusCode != 200 || resp.Header.Get(PinHeader) != "1" {
			t.Errorf("%s from %s: %s", resp.Status, resp.Header.Get(PinHeader), text)
		}
	}
	f.engines[1].Set(enginetest.Refuse)
	if resp, text := f.ask(t, "POST", path, "application/json", body); resp.StatusCode != 503 || !strings.Contains(text, "overloaded") {
		t.Errorf("%s %s", resp.Status, text)
	}
	f.idle(t)
}

// The rank that the header names wins over SGLang's number in the body, as for completions.
func TestAHeadersPinWinsOverTheBodysOnOtherPaths(t *testing.T) {
	f := newFront(t, 1, func(o *Options) {
		o.Reader.EngineRank = func(string, int) (int32, int, bool) { return 0, 0, true } // none has the number
	})
	const body = `{"model":"m","routed_dp_rank":7}`
	if resp, text := f.ask(t, "POST", "/v1/responses", "application/json", body); resp.StatusCode != 400 {
		t.Errorf("without a header: %s %s", resp.Status, text)
	}
	if resp, text := f.ask(t, "POST", "/v1/responses", "application/json", body, PinHeader, "0"); resp.StatusCode != 200 {
		t.Errorf("%s %s", resp.Status, text)
	}
	f.idle(t)
}

func TestStreamsOfOtherPathsArePassedOn(t *testing.T) {
	f := newFront(t, 1, nil)
	f.engines[0].Step = make(chan struct{}, 1)
	req, err := http.NewRequestWithContext(t.Context(), "POST", f.URL+"/v1/responses", strings.NewReader(`{"model":"m","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	f.engines[0].Step <- struct{}{}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	first := make([]byte, 6)
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "data: " {
		t.Fatalf("%q %v before the end of the stream", first, err)
	}
	close(f.engines[0].Step)
	if rest, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(rest), "[DONE]") {
		t.Errorf("%q %v", rest, err)
	}
}

func TestOtherPathsThatCannotBeForwardedAreRefused(t *testing.T) {
	f := newFront(t, 1, func(o *Options) { o.Reader.MaxBodyBytes = 4096 })
	f.another(t, 5, "m2")
	for _, c := range []struct {
		path, body, code string
		status           int
		header           []string
	}{
		{"/v1/embeddings", `{"model":"m3"}`, "model_not_found", 404, nil},
		{"/v1/embeddings", `{"input":"x"}`, "model_not_found", 404, nil},
		{"/v1/embeddings", `not json`, "model_not_found", 404, nil},
		{"/v1/embeddings", `{"model":7}`, "invalid_request", 400, nil},
		{"/v1/embeddings", `{"model":"m","input":"` + strings.Repeat("x", 5000) + `"}`, "body_too_large", 413, nil},
		{"/v1/embeddings", `{"model":"m"}`, "invalid_request", 400, []string{PinHeader, "x"}},
		{"/v1/embeddings", `{"model":"m"}`, "invalid_request", 400, []string{front.SessionHeader, strings.Repeat("s", 300)}},
		{"/v1/load_lora_adapter", `{"model":"m"}`, "not_forwarded", 404, nil},
		{"/v1/unload_lora_adapter/", `{"model":"m"}`, "not_forwarded", 404, nil},
		{"/v1/load_lora%5fadapter", `{"model":"m"}`, "not_forwarded", 404, nil},
		// Starlette, which engines use, ignores a line break at the end of a path.
		{"/v1/load_lora_adapter%0A", `{"model":"m"}`, "not_found", 404, nil},
		// They answer this with a redirect to their own address.
		{"/v1/embeddings/", `{"model":"m"}`, "not_found", 404, nil},
		{"/v1/embeddings%7F", `{"model":"m"}`, "not_found", 404, nil},
		{"/v1/%2e%2e/flush_cache", `{"model":"m"}`, "not_found", 404, nil},
		{"/v1/a/%2e/load_lora_adapter", `{"model":"m"}`, "not_found", 404, nil},
		{"/v1/a%2F%2Fb", `{"model":"m"}`, "not_found", 404, nil},
	} {
		resp, body := f.ask(t, "POST", c.path, "application/json", c.body, c.header...)
		if resp.StatusCode != c.status || !strings.Contains(body, `"code":"`+c.code+`"`) {
			t.Errorf("%s %.40s: %s %s, want %d %s", c.path, c.body, resp.Status, body, c.status, c.code)
		}
	}
	if n := len(f.engines[0].Requests()); n != 0 {
		t.Errorf("%d requests reached the engine", n)
	}
	f.idle(t)
}
