package front

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/tokenize"
)

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
	// EngineRank finds the rank that requests for a model mean by an engine's own number in their body. taken is false if
	// the model's engine takes no number, ranks is how many have it. It may be nil.
	EngineRank func(model string, number int) (rank int32, ranks int, taken bool)
	// TakesAdapter reports whether requests for a model may name an adapter beside it. It may be nil.
	TakesAdapter func(model string) bool
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
	switch err := fields.UnmarshalJSON(body); {
	case errors.Is(err, errFields):
		return nil, nil, BadRequest("the body has more than %d fields", maxFields)
	case err != nil || fields == nil:
		return nil, nil, BadRequest("the body is not a JSON object")
	}
	return body, fields, nil
}

// Read understands the fields of a completion, with the headers of the HTTP request, and has its prompt
// tokenized. The request has a pin only if the body has SGLang's. Errors are an [Error] or wrap tokenize.ErrTooLong.
func (x *Reader) Read(ctx context.Context, h http.Header, fields Fields) (*Request, error) {
	q := &Request{Request: route.Request{Request: policy.Request{Pin: policy.NoPin}}}
	var salt string
	if err := cmp.Or(q.readConversation(h, fields), fields.Read("model", &q.Model), fields.Read("cache_salt", &salt)); err != nil {
		return nil, err
	}
	q.Scope = connector.Scope{Salt: salt}
	x.readAdapter(q, fields)
	unpinned, err := x.readPin(q, fields)
	if err != nil {
		return nil, err
	}
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
	if unpinned != "" {
		q.Note = strings.TrimPrefix(q.Note+"; "+unpinned, "; ")
	}
	return q, nil
}

// SessionHeader has the conversation's id, ParentHeader that of the conversation it came from.
const (
	SessionHeader = "X-Session-Id"
	ParentHeader  = "X-Parent-Session-Id"
)

// maxID bounds ids of conversations: they are remembered.
const maxID = 256

// readConversation takes the conversation from a request's headers and, where they have none, from the fields of
// its body: conversation_id, session_id or conversation_params.conversation_id (TensorRT-LLM's),
// parent_conversation_id, first_turn, messages. The error is an [Error] and names the field.
func (q *Request) readConversation(h http.Header, fields Fields) error {
	var id, session, parent string
	var params struct {
		ID string `json:"conversation_id"`
	}
	err := cmp.Or(fields.Read("conversation_id", &id), fields.Read("session_id", &session),
		fields.Read("parent_conversation_id", &parent), fields.Read("conversation_params", &params))
	if err != nil {
		return err
	}
	q.Session, parent = cmp.Or(h.Get(SessionHeader), id, session, params.ID), cmp.Or(h.Get(ParentHeader), parent)
	for _, id := range [...]string{q.Session, parent} {
		if len(id) > maxID || strings.ContainsFunc(id, IsControl) {
			return BadRequest("the conversation's id %.40q is longer than %d bytes or has control characters", id, maxID)
		}
	}
	q.Conversation = cmp.Or(parent, q.Session) // a sub-agent shares the prefix of its parent
	q.FirstTurn, q.Content = firstTurn(fields), opening(fields["messages"])
	return nil
}

// IsControl reports whether a character must not stand in a header; ids are passed on in headers.
func IsControl(r rune) bool { return r < ' ' || r == 0x7f }

// firstTurn is what the request says, or whether its messages have no answer yet.
func firstTurn(fields Fields) bool {
	var said *bool
	if fields.Read("first_turn", &said) == nil && said != nil {
		return *said
	}
	m := fields["messages"]
	return len(m) > 0 && !bytes.Contains(m, []byte(`"assistant"`))
}

// opening names the first two messages of a chat.
func opening(messages json.RawMessage) string {
	dec := json.NewDecoder(bytes.NewReader(messages))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return ""
	}
	h := xxh3.New()
	for range 2 {
		var m json.RawMessage
		if !dec.More() || dec.Decode(&m) != nil {
			break
		}
		_, _ = h.Write(m) // never fails
	}
	return strconv.FormatUint(h.Sum64(), 16)
}
