// Package enginetest has engines for tests of the router: real HTTP servers that speak the OpenAI API
// with server-sent events, tokenize, publish KV cache events over ZeroMQ, and fail as engines do.
package enginetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Mode is the behaviour of an engine.
type Mode int

// The modes.
const (
	// Serve answers.
	Serve Mode = iota
	// Refuse answers 503, Reject 400, Fail 500.
	Refuse
	Reject
	Fail
	// Die closes the connection before the first byte of the body, DieMidStream after some.
	Die
	DieMidStream
	// FailInStream answers 200 with an error as the first event, as vLLM does when its engine dies.
	FailInStream
	// Hang answers nothing until the client gives up.
	Hang
)

// Request is a request that an engine got.
type Request struct {
	Method string
	Path   string
	// URI is the path as it was sent, with the query.
	URI    string
	Header http.Header
	Body   string
}

// Engine is an engine's HTTP server.
type Engine struct {
	*httptest.Server
	Model string

	t        testing.TB
	mu       sync.Mutex
	mode     Mode
	tokenize Mode
	sick     bool
	requests []Request
	gone     int
	// Step, if not nil, is received from before each chunk of a stream.
	Step chan struct{}
}

// New starts an engine. It ends with the test.
func New(t testing.TB, model string) *Engine {
	t.Helper()
	e := &Engine{t: t, Model: model}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", e.health)
	mux.HandleFunc("GET /v1/models", e.models)
	mux.HandleFunc("POST /tokenize", e.serveTokenize)
	mux.HandleFunc("POST /v1/completions", e.complete)
	mux.HandleFunc("POST /v1/chat/completions", e.complete)
	mux.HandleFunc("/", e.complete)
	e.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		e.CloseClientConnections()
		e.Close()
	})
	return e
}

// Set changes how requests are answered.
func (e *Engine) Set(m Mode) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mode = m
}

// SetTokenize changes how POST /tokenize is answered.
func (e *Engine) SetTokenize(m Mode) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tokenize = m
}

// SetSick makes health checks answer 503, whatever requests are answered with.
func (e *Engine) SetSick(sick bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sick = sick
}

// Requests are the completions asked for so far.
func (e *Engine) Requests() []Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]Request(nil), e.requests...)
}

// Gone counts the clients that left before their answer was complete.
func (e *Engine) Gone() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gone
}

func (e *Engine) health(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mode == Refuse || e.sick {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (e *Engine) models(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model","owned_by":"test","max_model_len":4096}]}`, e.Model)
}

// Tokens are those of a text: one for each byte.
func Tokens(text string) []uint32 {
	tokens := make([]uint32, len(text))
	for i := range tokens {
		tokens[i] = uint32(text[i])
	}
	return tokens
}

// serveTokenize answers in vLLM's form.
func (e *Engine) serveTokenize(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Prompt   string
		Messages []struct{ Role, Content string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	mode := e.tokenize
	e.mu.Unlock()
	switch mode {
	case Hang:
		<-r.Context().Done()
		return
	case Serve:
	default:
		http.Error(w, `{"error":"no tokenizer"}`, http.StatusNotFound)
		return
	}
	text := body.Prompt
	for _, m := range body.Messages {
		text += m.Role + ":" + m.Content + "\n"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"count": len(text), "max_model_len": 4096, "tokens": Tokens(text)})
}

func (e *Engine) complete(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e.mu.Lock()
	mode := e.mode
	e.requests = append(e.requests, Request{Method: r.Method, Path: r.URL.Path, URI: r.RequestURI, Header: r.Header.Clone(), Body: string(body)})
	e.mu.Unlock()
	w.Header().Set("X-Engine", e.URL)
	w.Header().Set("Connection", "X-Hop")
	w.Header().Set("X-Hop", "1")
	switch mode {
	case Refuse:
		http.Error(w, `{"error":{"message":"overloaded"}}`, http.StatusServiceUnavailable)
	case Fail:
		http.Error(w, `{"error":{"message":"internal"}}`, http.StatusInternalServerError)
	case FailInStream:
		fmt.Fprint(w, "data: {\"error\": {\"message\": \"internal\"}}\n\ndata: [DONE]\n\n")
	case Reject:
		http.Error(w, `{"error":{"message":"bad prompt"}}`, http.StatusBadRequest)
	case Die:
		panic(http.ErrAbortHandler)
	case Hang:
		<-r.Context().Done()
		e.left()
	default:
		e.answer(w, r, strings.Contains(string(body), `"stream":true`), mode)
	}
}

func (e *Engine) left() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone++
}

const chunks = 4

func (e *Engine) answer(w http.ResponseWriter, r *http.Request, stream bool, mode Mode) {
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"object":"text_completion","choices":[{"text":"hello"}]}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range chunks {
		if e.Step != nil {
			select {
			case <-e.Step:
			case <-r.Context().Done():
				e.left()
				return
			}
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\"t%d\"}]}\n\n", i)
		w.(http.Flusher).Flush()
		if mode == DieMidStream && i == 1 {
			panic(http.ErrAbortHandler)
		}
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}
