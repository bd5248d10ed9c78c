package enginebench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// openAI is a server that streams, and counts a prompt as cached that it has had before.
type openAI struct {
	*httptest.Server
	name string
	key  string

	mu   sync.Mutex
	seen map[string]int
	log  *[]string // the names of all servers of a test, in the order of requests
}

func newOpenAI(t *testing.T, name, key string, log *[]string) *openAI {
	t.Helper()
	s := &openAI{name: name, key: key, seen: make(map[string]int), log: log}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// two servers share what they log: tests ask one after the other.
func (s *openAI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.key != "" && r.Header.Get("Authorization") != "Bearer "+s.key {
		http.Error(w, `{"error": {"message": "no key"}}`, http.StatusUnauthorized)
		return
	}
	if r.URL.Path == "/v1/models" {
		_, _ = fmt.Fprintf(w, `{"data": [{"id": "model-%s"}]}`, s.name)
		return
	}
	var q struct {
		Model    string
		Prompt   string
		Messages []struct{ Role, Content string }
		Stream   bool
	}
	if json.NewDecoder(r.Body).Decode(&q) != nil || !q.Stream || q.Model != "model-"+s.name {
		http.Error(w, `{"error": {"message": "bad request"}}`, http.StatusBadRequest)
		return
	}
	format, text := `{"choices":[{"text":%q}]}`, q.Prompt
	if r.URL.Path == "/v1/chat/completions" {
		format, text = `{"choices":[{"delta":{"content":%q}}]}`, q.Messages[0].Content
	}
	s.mu.Lock()
	s.seen[text]++
	again := s.seen[text] > 1
	*s.log = append(*s.log, fmt.Sprintf("%s %d", s.name, len(strings.Fields(text))))
	s.mu.Unlock()
	event := func(data string) {
		_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
		w.(http.Flusher).Flush()
	}
	event(`{"choices":[{"delta":{"role":"assistant","content":""},"text":""}]}`)
	event(fmt.Sprintf(format, " a"))
	event(fmt.Sprintf(format, " b"))
	tokens := 2 * len(strings.Fields(text)) // two tokens a word
	cached := 0
	if again {
		cached = tokens / 2
	}
	event(fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, tokens, cached))
	event("[DONE]")
}

func TestEveryPromptIsAskedColdAndAgain(t *testing.T) {
	for _, chat := range []bool{false, true} {
		var log []string
		a := newOpenAI(t, "a", "k", &log)
		steps := make(map[string]int)
		r, err := Run(t.Context(), Options{
			Engine: Endpoint{URL: a.URL, Key: "k"}, Chat: chat, Tokens: []int{100, 200}, Prompts: 3, Pause: -1, Seed: 7,
			Progress: func(step string, _, total int) { steps[step] = total },
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(log) != 2+2*2*3 || steps["cold prompts"] != 6 || steps["the same prompts again"] != 6 {
			t.Errorf("%d requests: %v; %v", len(log), log, steps)
		}
		if len(a.seen) != 2+6 {
			t.Errorf("%d different prompts", len(a.seen))
		}
		for i, l := range r.Lengths {
			f := l.Engine
			if want := []float64{100, 200}[i]; f.PromptTokens != want || l.Tokens != int(want) {
				t.Errorf("%v tokens by the engine's count, %d wanted", f.PromptTokens, l.Tokens)
			}
			if f.Model != "model-a" || f.ColdCached != 0 || f.AgainCached != 0.5 || f.Cold.Min <= 0 || f.Cold.Min > f.ColdTotal.Min || l.Compare != nil {
				t.Errorf("%+v", l)
			}
		}
	}
}

// Endpoints take turns, so that what disturbs the machine disturbs both; no text goes to both.
func TestEndpointsAreComparedInTurn(t *testing.T) {
	var log []string
	a, b := newOpenAI(t, "a", "ka", &log), newOpenAI(t, "b", "", &log)
	r, err := Run(t.Context(), Options{
		Engine: Endpoint{URL: a.URL + "/v1/", Key: "ka"}, Compare: &Endpoint{URL: b.URL, Model: "model-b"},
		Tokens: []int{100}, Prompts: 3, FillTokens: 350, Pause: time.Millisecond, Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a 256", "a 256", "b 256", "b 256"}
	cold := []string{"a 50", "b 50", "b 50", "a 50", "a 50", "b 50"}
	fill := []string{"a 50", "b 50", "a 50", "b 50", "a 50", "b 50"}
	want = append(append(append(want, cold...), fill...), cold...)
	if fmt.Sprint(log) != fmt.Sprint(want) {
		t.Errorf("asked\n%v\nwant\n%v", log, want)
	}
	for text := range a.seen {
		if b.seen[text] != 0 {
			t.Errorf("both were asked %.30s...", text)
		}
	}
	l := r.Lengths[0]
	if l.Compare == nil || l.Compare.Model != "model-b" || l.ColdRatio == nil || l.ColdRatio.Median <= 0 || l.AgainRatio == nil {
		t.Errorf("%+v", l)
	}
	var out strings.Builder
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "engine/compare, pair by pair") || !strings.Contains(out.String(), "again 50%") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// Ratios are taken pair by pair, and then the middle one: not of two middles.
func TestRatiosAreOfPairs(t *testing.T) {
	b := &bench{o: &Options{Prompts: 3, Tokens: []int{1}}, samples: make(map[place]*sample), targets: []*target{{client: new(client)}, {client: new(client)}}}
	for n, s := range [][2]time.Duration{{1, 2}, {30, 10}, {8, 4}} {
		b.samples[place{0, 0, n}] = &sample{cold: answer{firstToken: s[0] * time.Second, total: s[0] * time.Second}, again: answer{firstToken: time.Second}}
		b.samples[place{1, 0, n}] = &sample{cold: answer{firstToken: s[1] * time.Second}, again: answer{firstToken: time.Second}}
	}
	l := b.result().Lengths[0]
	if *l.ColdRatio != (Spread{Min: 0.5, Median: 2, Max: 3}) || l.Engine.Cold != (Spread{Min: 1, Median: 8, Max: 30}) || l.Engine.Ratio.Median != 0.125 {
		t.Errorf("%+v, %+v", l.ColdRatio, l.Engine)
	}
	if s := spreadOf([]float64{4, 1}); s.Median != 2.5 {
		t.Errorf("the middle of two: %+v", s)
	}
}

// A role is no token: the clock runs until the first one comes.
func TestTheFirstTokenIsTheFirstText(t *testing.T) {
	const pause = 20 * time.Millisecond
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, ": a comment\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n")
		w.(http.Flusher).Flush()
		time.Sleep(pause)
		_, _ = fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"x\"}}]}\n\ndata: [DONE]\n\n")
	}))
	defer s.Close()
	c, err := newClient(t.Context(), Endpoint{URL: s.URL, Model: "m"}, &Options{Timeout: time.Minute, Chat: true})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := c.ask(t.Context(), "x"); err != nil || a.firstToken < pause || a.total < a.firstToken {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestWhatIsWrongWithAnEndpointIsSaid(t *testing.T) {
	stream := func(events ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for _, e := range events {
				_, _ = fmt.Fprintf(w, "data: %s\n\n", e)
			}
		}
	}
	token := `{"choices":[{"text":"x"}]}`
	for want, h := range map[string]http.HandlerFunc{
		"no key: give the endpoint's API key": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error": {"message": "no key"}}`, http.StatusUnauthorized)
		},
		"asked with --chat": func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) },
		"does not stream":   func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, `{"choices": []}`) },
		"307 Temporary Redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		},
		"ended without a token":       stream("[DONE]"),
		"ended in the middle":         stream(token),
		"the engine failed: it broke": stream(token, `{"error":{"message":"it broke"}}`),
		"no JSON":                     stream("{"),
		"token too long":              stream(strings.Repeat("x", maxLineBytes)),
	} {
		s := httptest.NewServer(h)
		_, err := Run(t.Context(), Options{Engine: Endpoint{URL: s.URL, Model: "m"}, Tokens: []int{100}, Pause: -1})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), s.URL) {
			t.Errorf("%v, want %q", err, want)
		}
		s.Close()
	}
	for want, o := range map[string]Options{
		"no URL":           {Engine: Endpoint{URL: "localhost:8000"}},
		"would be printed": {Engine: Endpoint{URL: "http://u:p@h"}},
		"a prompt of 1":    {Engine: Endpoint{URL: "http://h"}, Tokens: []int{1}},
		"20000 prompts":    {Engine: Endpoint{URL: "http://h"}, Prompts: 20000},
		"must be positive": {Engine: Endpoint{URL: "http://h"}, FillTokens: -1},
		"at least one":     {Engine: Endpoint{URL: "http://h"}, OutputTokens: -1},
		"timeout must":     {Engine: Endpoint{URL: "http://h"}, Timeout: -1},
	} {
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestAnInterruptEndsTheBench(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server sees no end of the connection before
		cancel()
		<-r.Context().Done()
	}))
	defer s.Close()
	if _, err := Run(ctx, Options{Engine: Endpoint{URL: s.URL, Model: "m"}}); err == nil || ctx.Err() == nil {
		t.Error(err)
	}
}

// Equal seeds make equal prompts, so that a run can be repeated; any other number makes another prompt.
func TestPromptsFollowTheSeed(t *testing.T) {
	if a, b := prompt(1, 0, kindPrompt, 0, 50), prompt(1, 0, kindPrompt, 0, 50); a != b {
		t.Error("equal seeds make different prompts")
	}
	begins := make(map[string]bool)
	for seed := range uint64(3) {
		for stream := range uint64(2) {
			for n := range 50 {
				for _, k := range []kind{kindProbe, kindPrompt, kindFill} {
					text := prompt(seed, stream, k, n, 40)
					if got := len(strings.Fields(text)); got != 40 {
						t.Fatalf("%d words", got)
					}
					begins[strings.Join(strings.Fields(text)[:12], " ")] = true
				}
			}
		}
	}
	if len(begins) != 3*2*50*3 {
		t.Errorf("%d beginnings", len(begins))
	}
}
