package front

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/route"
)

// A body's size says little of its tokens: it may have images or audio. So it counts up to a bound.
const (
	otherBytesPerToken = 4
	maxOtherTokens     = 32 << 10
)

// ReadOther understands as much of a request for another path than a completion's as routing by load needs: the model, the
// conversation, and SGLang's pin. The model is named by the body, JSON or a form, or by the query. What the router does
// not understand is the engine's to refuse. A pin of SGLang's counts only if the request is not pinned otherwise. stream says
// that the answer is to be streamed. Errors are an [Error].
func (x *Reader) ReadOther(r *http.Request, body []byte, pinned bool) (q *Request, stream bool, err error) {
	q = &Request{Request: route.Request{Request: policy.Request{Pin: policy.NoPin}, Scope: connector.Scope{}, Model: r.URL.Query().Get("model")}}
	if name := formModel(r.Header, body); name != "" {
		q.Model = name
	}
	var fields Fields
	if fields.UnmarshalJSON(body) == nil && fields != nil {
		q.Tokens = min(len(body)/otherBytesPerToken, maxOtherTokens, x.Tokens.MaxTokens)
		_ = json.Unmarshal(fields["stream"], &stream)
		if err := fields.Read("model", &q.Model); err != nil {
			return nil, false, err
		}
	}
	if err := q.readConversation(r.Header, fields); err != nil {
		return nil, false, err
	}
	if !pinned {
		q.Note, err = x.readPin(q, fields)
	}
	return q, stream, err
}

// maxFormParts bounds how far a form is searched, maxModelName a model's name in it.
const (
	maxFormParts = 64
	maxModelName = 1024
)

// formModel is the field model of a form, such as those that come with audio; "" if there is none.
func formModel(h http.Header, body []byte) string {
	kind, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return ""
	}
	form := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for range maxFormParts {
		part, err := form.NextRawPart()
		if err != nil {
			return ""
		}
		if part.FormName() == "model" {
			name, _ := io.ReadAll(io.LimitReader(part, maxModelName))
			return strings.TrimSpace(string(name))
		}
	}
	return ""
}
