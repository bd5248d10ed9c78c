package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/proxy"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/tokenize"
)

// RouteRequest is the body of POST /v1/route beside the prompt, which is in token_ids, prompt or messages
// as in a completion. Further fields of a completion are allowed.
type RouteRequest struct {
	Model string `json:"model"`
	// CacheSalt and LoRA are the scope; an adapter that is the model needs no mention.
	CacheSalt string `json:"cache_salt"`
	LoRA      string `json:"lora"`
	// ConversationID may also be SessionID or in ConversationParams, or come in the header X-Session-ID,
	// ParentConversationID in X-Parent-Session-ID.
	ConversationID       string          `json:"conversation_id"`
	SessionID            string          `json:"session_id"`
	ConversationParams   json.RawMessage `json:"conversation_params"`
	ParentConversationID string          `json:"parent_conversation_id"`
	// FirstTurn is seen by the messages where it is not given.
	FirstTurn bool `json:"first_turn"`
	// Content names the opening of the prompt for the policy serve-kv-aware. Default: that of messages.
	Content string `json:"content"`
	Pin     *Pin   `json:"pin"`
	// Exclude are ranks that have failed the request.
	Exclude []int32 `json:"exclude"`
	// Explain asks for the scores of all ranks.
	Explain bool `json:"explain"`
}

// Pin asks for a rank.
type Pin struct {
	Rank int32 `json:"rank"`
	// Strict says that no other will do.
	Strict bool `json:"strict"`
}

// RouteAnswer is where a request goes.
type RouteAnswer struct {
	// Request names the request in reports.
	Request string `json:"request"`
	Rank    int32  `json:"rank"`
	Model   string `json:"model"`
	// Endpoint is where to send it, Headers what to send with it.
	Endpoint string            `json:"endpoint"`
	Headers  map[string]string `json:"headers"`
	Reason   string            `json:"reason"`
	// PinMissed is why the pin was not followed, if so.
	PinMissed string `json:"pin_missed,omitempty"`
	// Note says what was done differently than asked.
	Note         string `json:"note,omitempty"`
	PromptTokens int    `json:"prompt_tokens"`
	// CachedTokens are those expected not to be computed, of which LoadDiskTokens and LoadObjectTokens
	// are loaded from these tiers.
	CachedTokens     int32   `json:"cached_tokens"`
	LoadDiskTokens   int32   `json:"load_disk_tokens"`
	LoadObjectTokens int32   `json:"load_object_tokens"`
	Scores           []Score `json:"scores,omitempty"`
}

// maxContent bounds Content, maxExclude the ranks that a request excludes.
const (
	maxContent = 256
	maxExclude = 64
)

// question is a request for a decision, read.
type question struct {
	RouteRequest
	found tokenize.Found
}

// ask reads the request for a decision; it answers itself if that fails.
func (s *server) ask(w http.ResponseWriter, r *http.Request) (q question, ok bool) {
	var body json.RawMessage
	if !s.readJSON(w, r, &body) {
		return q, false
	}
	var fields map[string]json.RawMessage
	err := json.Unmarshal(body, &fields)
	if err == nil {
		err = json.Unmarshal(body, &q.RouteRequest)
	}
	switch {
	case err != nil:
	case fields == nil:
		err = errors.New("the body is not a JSON object")
	case len(q.Content) > maxContent:
		err = fmt.Errorf("content is longer than %d bytes", maxContent)
	case len(q.Exclude) > maxExclude:
		err = fmt.Errorf("more than %d excluded ranks", maxExclude)
	case q.Pin != nil && q.Pin.Rank < 0:
		err = errors.New("pin.rank is negative")
	default:
		err = q.resolve(s, r, fields)
	}
	switch {
	case errors.Is(err, tokenize.ErrTooLong):
		writeError(w, http.StatusBadRequest, "prompt_too_long", err.Error())
	case err != nil:
		writeError(w, http.StatusBadRequest, "invalid_request", err.Error())
	}
	return q, err == nil
}

// resolve finds the conversation and the prompt's tokens.
func (q *question) resolve(s *server, r *http.Request, fields map[string]json.RawMessage) error {
	c, err := proxy.ReadConversation(r.Header, fields)
	if err != nil {
		return err
	}
	q.ConversationID, q.ParentConversationID, q.FirstTurn = c.ID, c.Parent, c.FirstTurn
	if q.Content == "" {
		q.Content = c.Content
	}
	q.found, err = s.tokens.Resolve(r.Context(), q.Model, fields, func() []string { return s.router.ReadyEndpoints(q.Model) })
	return err
}

func (q *question) scope() connector.Scope {
	return connector.Scope{Salt: q.CacheSalt, LoRA: q.LoRA}
}

func (s *server) serveRoute(w http.ResponseWriter, r *http.Request) {
	q, ok := s.ask(w, r)
	if !ok {
		return
	}
	req := route.Request{
		Model: q.Model, Tokens: q.found.IDs, Length: q.found.Length, Scope: q.scope(), FirstTurn: q.FirstTurn, Content: q.Content,
		Conversation: policy.AffinityKey(q.ParentConversationID, q.ConversationID), Pin: policy.NoPin, Exclude: q.Exclude, Explain: q.Explain,
	}
	if q.Pin != nil {
		req.Pin, req.Strict = q.Pin.Rank, q.Pin.Strict
	}
	var d route.Decision
	if err := (timed{s.router, &s.decided}).Route(r.Context(), &req, &d); err != nil {
		writeRouteError(w, err)
		return
	}
	if !d.Placed() {
		refuse(w, &d)
		return
	}
	writeJSON(w, http.StatusOK, answer(&q, &d))
}

// answer is a decision in words.
func answer(q *question, d *route.Decision) RouteAnswer {
	a := RouteAnswer{
		Request: strconv.FormatUint(d.Handle, 16), Rank: d.Rank, Model: d.Model, Endpoint: d.Endpoint, Headers: map[string]string{},
		Reason: d.Reason.String(), PromptTokens: q.found.Length, CachedTokens: d.UseTokens, LoadDiskTokens: d.LoadDisk,
		LoadObjectTokens: d.LoadObject, Scores: scores(d),
	}
	if d.Header != "" {
		a.Headers[registry.RankHeader] = d.Header
	}
	if q.ConversationID != "" {
		a.Headers["X-Session-ID"] = q.ConversationID
	}
	if d.PinMissed != policy.ReasonPin {
		a.PinMissed = d.PinMissed.String()
	}
	switch {
	case q.found.Fallback != nil:
		a.Note = "routed by load: " + q.found.Fallback.Error()
	case q.found.Several:
		a.Note = "routed by the first of several prompts"
	}
	return a
}

func writeRouteError(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, route.ErrUnknownModel):
		writeError(w, http.StatusNotFound, "model_not_found", err.Error())
	case errors.Is(err, route.ErrPromptTooLong):
		writeError(w, http.StatusBadRequest, "prompt_too_long", err.Error())
	case errors.Is(err, route.ErrBusy):
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable, "busy", err.Error())
	default:
		writeError(w, http.StatusServiceUnavailable, "cancelled", err.Error())
	}
}

// refuse says why no rank takes a request.
func refuse(w http.ResponseWriter, d *route.Decision) {
	status, message := proxy.Refusal(d.Reason)
	if d.Reason.Retry() {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, Failure{
		Error: FailureText{Message: message, Type: "router_error", Code: d.Reason.String()}, Scores: scores(d),
	})
}

func (s *server) servePrefillDone(w http.ResponseWriter, r *http.Request) {
	report(w, r, s.router.PrefillDone)
}

func (s *server) serveFinished(w http.ResponseWriter, r *http.Request) {
	report(w, r, s.router.Finish)
}

// report hands on what is said of a request.
func report(w http.ResponseWriter, r *http.Request, f func(uint64) bool) {
	id, err := strconv.ParseUint(r.PathValue("id"), 16, 64)
	if err != nil || !f(id) {
		writeError(w, http.StatusNotFound, "unknown_request", "no such request: it has finished, nothing was heard of it for long, or its rank was removed")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
