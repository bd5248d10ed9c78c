package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/tokenize"
)

// The headers that say how a request is to be routed, and those that an answer has.
const (
	// SessionHeader is the conversation's id, ParentHeader that of the conversation it came from.
	SessionHeader = "X-Session-Id"
	ParentHeader  = "X-Parent-Session-Id"
	// PinHeader asks for a rank by its id; with StrictHeader true no other will do.
	PinHeader    = "X-Kvconn-Rank"
	StrictHeader = "X-Kvconn-Rank-Strict"
	// ReasonHeader is why the rank was chosen, CachedHeader how many tokens were expected to be cached
	// there, NoteHeader what was done differently than asked.
	ReasonHeader = "X-Kvconn-Reason"
	CachedHeader = "X-Kvconn-Cached-Tokens"
	NoteHeader   = "X-Kvconn-Note"
)

// bodyTimeout bounds the reading of a request's body.
const bodyTimeout = time.Minute

// incoming is a client's request.
type incoming struct {
	body    []byte
	stream  bool
	route   route.Request
	session string
	note    string
}

// httpError is an answer that is an error.
type httpError struct {
	status        int
	code, message string
}

func (e *httpError) Error() string { return e.message }

func badRequest(format string, args ...any) *httpError {
	return &httpError{http.StatusBadRequest, "invalid_request", fmt.Sprintf(format, args...)}
}

// read takes a client's request in.
func (p *Proxy) read(w http.ResponseWriter, r *http.Request) (*incoming, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // not all connections have one
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, p.opts.MaxBodyBytes))
	_ = control.SetReadDeadline(time.Time{})
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &httpError{http.StatusRequestEntityTooLarge, "body_too_large", fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit)}
	case err != nil:
		return nil, badRequest("read the body: %v", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return nil, badRequest("the body is not a JSON object")
	}
	in := &incoming{body: body}
	if err := in.describe(r, fields); err != nil {
		return nil, err
	}
	found, err := p.opts.Tokens.Resolve(r.Context(), in.route.Model, fields, func() []string { return p.opts.Engines(in.route.Model) })
	switch {
	case errors.Is(err, tokenize.ErrTooLong):
		return nil, &httpError{http.StatusBadRequest, "prompt_too_long", err.Error()}
	case err != nil:
		// The engine knows best what is wrong with it.
		in.note = "routed by load: " + err.Error()
		p.counts.untokenized.Add(1)
	case found.Fallback != nil:
		in.note = "routed by load: " + found.Fallback.Error()
		p.counts.untokenized.Add(1)
		p.opts.Logger.Debug("a prompt was routed by load alone", "model", in.route.Model, "error", found.Fallback)
	case found.Several:
		in.note = "routed by the first of several prompts"
	}
	in.route.Tokens, in.route.Length = found.IDs, found.Length
	return in, nil
}

// describe fills in what the policy needs.
func (in *incoming) describe(r *http.Request, fields map[string]json.RawMessage) error {
	var salt string
	for name, to := range map[string]*string{"model": &in.route.Model, "cache_salt": &salt} {
		if err := text(fields, name, to); err != nil {
			return badRequest("%v", err)
		}
	}
	c, err := ReadConversation(r.Header, fields)
	if err != nil {
		return badRequest("%v", err)
	}
	in.session = c.ID
	in.route.Scope = connector.Scope{Salt: salt}
	in.route.Conversation, in.route.FirstTurn, in.route.Content = c.Affinity(), c.FirstTurn, c.Content
	_ = json.Unmarshal(fields["stream"], &in.stream) // the engine says what is wrong with it
	in.route.Silent = !in.stream
	return in.pin(r)
}

func (in *incoming) pin(r *http.Request) error {
	in.route.Pin = policy.NoPin
	v := r.Header.Get(PinHeader)
	if v == "" {
		return nil
	}
	id, err := strconv.ParseInt(v, 10, 32)
	if err != nil || id < 0 {
		return badRequest("%s is %.32q: want the id of a rank", PinHeader, v)
	}
	in.route.Pin = int32(id)
	if v = r.Header.Get(StrictHeader); v != "" {
		if in.route.Strict, err = strconv.ParseBool(v); err != nil {
			return badRequest("%s is %.32q: want true or false", StrictHeader, v)
		}
	}
	return nil
}
