package front

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"
)

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
