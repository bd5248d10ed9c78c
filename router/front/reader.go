package front

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/tokenize"
)

// Fields are the fields of a JSON object.
type Fields map[string]json.RawMessage

// Read reads a field into to if it is there and not null.
func (f Fields) Read(name string, to any) error {
	if raw := f[name]; len(raw) > 0 && json.Unmarshal(raw, to) != nil {
		return BadRequest("%s has the wrong type", name)
	}
	return nil
}

// Request is a client's request as the router understands it.
type Request struct {
	route.Request
	// Session is the id of the conversation, by which the engine may know it, too.
	Session string
	// Fallback is why only load decides: the prompt could not be understood (tokenize.ErrPrompt) or
	// tokenized. Nil if it was.
	Fallback error
	// Note says what is done differently than asked, "" if nothing is.
	Note string
}

// Reader reads requests. It is safe for concurrent use.
type Reader struct {
	// Tokens finds prompts' tokens, Engines the endpoints that tokenize for a model.
	Tokens  *tokenize.Client
	Engines func(model string) []string
	// MaxBodyBytes bounds a request.
	MaxBodyBytes int64
}

// bodyTimeout bounds the reading of a request's body.
const bodyTimeout = time.Minute

// Body reads a body of bounded size in bounded time. The error is an [Error].
func (x *Reader) Body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // not all connections have one
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, x.MaxBodyBytes))
	_ = control.SetReadDeadline(time.Time{})
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &Error{
			Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Message: fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit),
		}
	case err != nil:
		return nil, BadRequest("read the body: %v", err)
	}
	return body, nil
}

// Object reads a body that is a JSON object. The error is an [Error].
func (x *Reader) Object(w http.ResponseWriter, r *http.Request) (body []byte, fields Fields, err error) {
	if body, err = x.Body(w, r); err != nil {
		return nil, nil, err
	}
	if json.Unmarshal(body, &fields) != nil || fields == nil {
		return nil, nil, BadRequest("the body is not a JSON object")
	}
	return body, fields, nil
}

// Read understands the fields of a completion, with the headers of the HTTP request, and has its prompt
// tokenized. The request has no pin. Errors are an [Error] or wrap tokenize.ErrTooLong.
func (x *Reader) Read(ctx context.Context, h http.Header, fields Fields) (*Request, error) {
	q := &Request{Request: route.Request{Request: policy.Request{Pin: policy.NoPin}}}
	var salt string
	if err := cmp.Or(q.readConversation(h, fields), fields.Read("model", &q.Model), fields.Read("cache_salt", &salt)); err != nil {
		return nil, err
	}
	q.Scope = connector.Scope{Salt: salt}
	found, err := x.Tokens.Resolve(ctx, q.Model, fields, func() []string { return x.Engines(q.Model) })
	if errors.Is(err, tokenize.ErrTooLong) {
		return nil, err
	}
	q.Prompt, q.Tokens, q.Fallback = found.IDs, found.Length, cmp.Or(err, found.Fallback)
	switch {
	case q.Fallback != nil:
		q.Note = "routed by load: " + q.Fallback.Error()
	case found.Several:
		q.Note = "routed by the first of several prompts"
	}
	return q, nil
}
