package service

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/tokenize"
)

// RouteRequest are the fields of a request for a decision that a completion does not have; front.Reader reads the
// others.
type RouteRequest struct {
	// LoRA is the adapter, if the model does not name it.
	LoRA string `json:"lora"`
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
	route.Decision
	// Request names the request in reports.
	Request string `json:"request"`
	// Headers are to be sent with the request.
	Headers map[string]string `json:"headers"`
	// Body are fields for the request's body. They say what Headers say, for clients that set no headers.
	Body map[string]json.Number `json:"body,omitempty"`
	// Note says what was done differently than asked.
	Note string `json:"note,omitempty"`
}

// RouteResult is the answer to one request of several: a decision, or an error.
type RouteResult struct {
	// Status is the HTTP status that the request would have had by itself.
	Status   int          `json:"status"`
	Decision *RouteAnswer `json:"decision,omitempty"`
	*front.Failure
}

// RouteResults are the answers to several requests, in their order.
type RouteResults struct {
	Results []RouteResult `json:"results"`
}

const (
	// maxContent bounds Content, maxExclude the ranks that a request excludes, maxBatch the requests that are
	// decided together.
	maxContent = 256
	maxExclude = 64
	maxBatch   = 256

	// readAtOnce is how many requests of a batch are tokenized at one time, readTimeouts the time for all of them, in
	// times that one may take.
	readAtOnce, readTimeouts = 16, 4
)

// read reads the fields that a completion does not have.
func (o *RouteRequest) read(fields front.Fields) error {
	var firstTurn *bool // a completion's is ignored where it is something else; here it is an error
	for _, field := range []struct {
		name string
		to   any
	}{
		{"lora", &o.LoRA}, {"content", &o.Content}, {"pin", &o.Pin}, {"exclude", &o.Exclude}, {"explain", &o.Explain}, {"first_turn", &firstTurn},
	} {
		if err := fields.Read(field.name, field.to); err != nil {
			return err
		}
	}
	switch {
	case len(o.Content) > maxContent:
		return front.BadRequest("content is longer than %d bytes", maxContent)
	case len(o.Exclude) > maxExclude:
		return front.BadRequest("more than %d excluded ranks", maxExclude)
	case o.Pin != nil && o.Pin.Rank < 0:
		return front.BadRequest("pin.rank is negative")
	}
	return nil
}

// ask reads a request for a decision.
func (s *server) ask(ctx context.Context, h http.Header, fields front.Fields) (*front.Request, error) {
	var o RouteRequest
	if err := o.read(fields); err != nil {
		return nil, err
	}
	if o.Pin != nil {
		fields.Unpin()
	}
	q, err := s.reader.Read(ctx, h, fields)
	if err != nil {
		return nil, err
	}
	if errors.Is(q.Fallback, tokenize.ErrPrompt) {
		return nil, front.BadRequest("%v", q.Fallback)
	}
	q.Scope.LoRA, q.Exclude, q.Explain = cmp.Or(o.LoRA, q.Scope.LoRA), o.Exclude, o.Explain
	if o.Content != "" {
		q.Content = o.Content
	}
	if o.Pin != nil {
		q.Pin, q.Strict = o.Pin.Rank, o.Pin.Strict
	}
	return q, nil
}

// serveRoute decides one request, which is the body, or several in the list requests.
func (s *server) serveRoute(w http.ResponseWriter, r *http.Request) (any, error) {
	_, fields, err := s.reader.Object(w, r)
	if err != nil {
		return nil, err
	}
	if several, ok := fields["requests"]; ok {
		return s.routeBatch(r.Context(), several)
	}
	answers, errs := s.route(r.Context(), r.Header, []front.Fields{fields})
	return answers[0], errs[0]
}

// batchOf reads a list of requests. It reads no more of them than are allowed: they take much more memory than
// their text.
func batchOf(several json.RawMessage) ([]front.Fields, error) {
	dec := json.NewDecoder(bytes.NewReader(several))
	open, err := dec.Token()
	var list []front.Fields
	for err == nil && len(list) <= maxBatch && dec.More() {
		var fields front.Fields
		err = dec.Decode(&fields)
		list = append(list, fields)
	}
	if err != nil || open != json.Delim('[') || len(list) == 0 || len(list) > maxBatch {
		return nil, front.BadRequest("requests is not a list of 1 to %d JSON objects", maxBatch)
	}
	return list, nil
}

func (s *server) routeBatch(ctx context.Context, several json.RawMessage) (any, error) {
	list, err := batchOf(several)
	if err != nil {
		return nil, err
	}
	answers, errs := s.route(ctx, nil, list)
	results := make([]RouteResult, len(answers))
	for i := range answers {
		if errs[i] == nil {
			results[i] = RouteResult{Status: http.StatusOK, Decision: answers[i]}
			continue
		}
		e := front.ErrorOf(errs[i])
		f := e.Body()
		results[i] = RouteResult{Status: e.Status, Failure: &f}
	}
	return RouteResults{Results: results}, nil
}

// route decides requests together. Each has an answer or an error.
func (s *server) route(ctx context.Context, h http.Header, list []front.Fields) ([]*RouteAnswer, []error) {
	asked, errs := make([]*front.Request, len(list)), make([]error, len(list))
	reading, cancel := context.WithTimeout(ctx, readTimeouts*s.opts.TokenizeTimeout)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(readAtOnce)
	for i, fields := range list {
		g.Go(func() error {
			asked[i], errs[i] = s.ask(reading, h, fields)
			return nil
		})
	}
	_ = g.Wait() // its functions return no error
	var reqs []route.Request
	var of []int
	for i, q := range asked {
		if errs[i] == nil {
			q.MaybeSilent = !s.told.Load()
			reqs, of = append(reqs, q.Request), append(of, i)
		}
	}
	answers, decisions := make([]*RouteAnswer, len(list)), make([]route.Decision, len(reqs))
	for at, err := range s.router.RouteAll(ctx, reqs, decisions) {
		i, d := of[at], &decisions[at]
		switch {
		case err != nil:
			errs[i] = err
		case !d.Placed():
			errs[i] = front.Refusal(&d.Decision)
		default:
			answers[i] = answer(asked[i], d)
		}
	}
	return answers, errs
}

// answer makes the answer of a decision.
func answer(q *front.Request, d *route.Decision) *RouteAnswer {
	a := &RouteAnswer{Decision: *d, Request: strconv.FormatUint(d.Handle, 16), Headers: map[string]string{}, Note: q.Note}
	if q.Explain && len(d.Scores) == 0 {
		a.Note = strings.TrimPrefix(q.Note+"; not explained: the batch has too many scores", "; ")
	}
	if d.Header != "" {
		a.Headers[registry.RankHeader] = d.Header
		if d.Engine == registry.SGLang {
			a.Headers[registry.OverrideHeader] = d.Header
			a.Body = map[string]json.Number{registry.RankField: json.Number(d.Header)}
		}
	}
	if q.Session != "" {
		a.Headers["X-Session-ID"] = q.Session
	}
	return a
}

// prefillDone notes that there are clients who report the ends of prefills: one that does not come is a sign from then on.
func (s *server) prefillDone(id uint64) (known bool) {
	if known = s.router.PrefillDone(id); known {
		s.told.Store(true)
	}
	return known
}

// report passes clients' reports of a request on to f.
func report(f func(uint64) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseUint(r.PathValue("id"), 16, 64)
		if err != nil || !f(id) {
			fail(http.StatusNotFound, "unknown_request", "no such request: it has finished, was not reported for too long, or its rank was removed").Write(w)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// fail returns an error as an answer.
func fail(status int, code, message string) *front.Error {
	return &front.Error{Status: status, Code: code, Message: message}
}

// PrefixAnswer is the answer of /v1/prefix.
type PrefixAnswer struct {
	PromptTokens int            `json:"prompt_tokens"`
	Ranks        []route.Prefix `json:"ranks"`
}

// serveGetPrefix takes a short prompt from the query.
func (s *server) serveGetPrefix(_ http.ResponseWriter, r *http.Request) (any, error) {
	q := r.URL.Query()
	ids, err := tokenize.AppendIDs([]uint32{}, []byte("["+q.Get("token_ids")+"]"), s.opts.Route.MaxPromptTokens)
	if errors.Is(err, tokenize.ErrIDs) {
		err = front.BadRequest("token_ids: %v", err)
	}
	if err != nil {
		return nil, err
	}
	return s.prefix(q.Get("model"), ids, connector.Scope{Salt: q.Get("cache_salt"), LoRA: q.Get("lora")})
}

// servePostPrefix takes a prompt as POST /v1/route does.
func (s *server) servePostPrefix(w http.ResponseWriter, r *http.Request) (any, error) {
	_, fields, err := s.reader.Object(w, r)
	if err != nil {
		return nil, err
	}
	q, err := s.ask(r.Context(), r.Header, fields)
	switch {
	case err != nil:
		return nil, err
	case q.Fallback != nil:
		return nil, fail(http.StatusBadGateway, "not_tokenized", q.Fallback.Error())
	}
	return s.prefix(q.Model, q.Prompt, q.Scope)
}

func (s *server) prefix(model string, ids []uint32, scope connector.Scope) (any, error) {
	list, err := s.router.Prefixes(model, ids, scope)
	return PrefixAnswer{PromptTokens: len(ids), Ranks: list}, err
}
