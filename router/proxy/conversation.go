package proxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/router/policy"
)

// maxID bounds ids of conversations: they are remembered.
const maxID = 256

// Conversation is what a request says of the conversation that it belongs to.
type Conversation struct {
	// ID names it, Parent the one that it came from; empty if there is none.
	ID, Parent string
	// FirstTurn says that it begins with the request.
	FirstTurn bool
	// Content names the opening of its messages; empty without messages.
	Content string
}

// Affinity is the id to route by.
func (c *Conversation) Affinity() string { return policy.AffinityKey(c.Parent, c.ID) }

// ReadConversation takes the conversation from a request's headers, which go before, and the fields of its
// body: conversation_id, session_id or conversation_params.conversation_id (TensorRT-LLM's),
// parent_conversation_id, first_turn, messages. The error says which of them cannot be used.
func ReadConversation(h http.Header, fields map[string]json.RawMessage) (Conversation, error) {
	var c Conversation
	var session, ofParams string
	var params map[string]json.RawMessage
	if raw := fields["conversation_params"]; len(raw) > 0 && json.Unmarshal(raw, &params) != nil {
		return c, errors.New("conversation_params is not an object")
	}
	if err := text(params, "conversation_id", &ofParams); err != nil {
		return c, fmt.Errorf("conversation_params: %w", err)
	}
	for _, f := range [...]struct {
		name string
		to   *string
	}{{"conversation_id", &c.ID}, {"session_id", &session}, {"parent_conversation_id", &c.Parent}} {
		if err := text(fields, f.name, f.to); err != nil {
			return c, err
		}
	}
	c.ID = cmp.Or(h.Get(SessionHeader), c.ID, session, ofParams)
	c.Parent = cmp.Or(h.Get(ParentHeader), c.Parent)
	for _, id := range [...]string{c.ID, c.Parent} {
		if len(id) > maxID || strings.ContainsFunc(id, isControl) {
			return c, fmt.Errorf("the conversation's id %.40q is longer than %d bytes or has control characters", id, maxID)
		}
	}
	c.FirstTurn, c.Content = firstTurn(fields), opening(fields["messages"])
	return c, nil
}

// isControl reports whether a character must not stand in a header, by which ids are passed on.
func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// text reads a field that is a string if it is there.
func text(fields map[string]json.RawMessage, name string, to *string) error {
	if raw := fields[name]; len(raw) > 0 && json.Unmarshal(raw, to) != nil {
		return fmt.Errorf("%s is not a text", name)
	}
	return nil
}

// firstTurn is what the request says, or whether nobody has answered in its messages yet.
func firstTurn(fields map[string]json.RawMessage) bool {
	var said *bool // null is as good as missing
	if raw := fields["first_turn"]; len(raw) > 0 && json.Unmarshal(raw, &said) == nil && said != nil {
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
