package wire

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// Codes of error frames.
const (
	CodeProtocol       = "protocol"
	CodeVersion        = "version"
	CodeBadRequest     = "bad_request"
	CodeUnknownRequest = "unknown_request"
	CodeNotRegistered  = "not_registered"
	CodeAgain          = "again"
	CodeInternal       = "internal"
)

// codeError pairs an error that callers decide on with its code.
type codeError struct {
	code string
	err  error
}

func codeErrors() [6]codeError {
	return [...]codeError{
		{CodeProtocol, connector.ErrProtocol},
		{CodeVersion, connector.ErrVersion},
		{CodeBadRequest, connector.ErrBadRequest},
		{CodeUnknownRequest, connector.ErrUnknownRequest},
		{CodeNotRegistered, connector.ErrNotRegistered},
		{CodeAgain, connector.ErrAgain},
	}
}

// ErrorBody is the body of an error frame.
type ErrorBody struct {
	Code, Message string
}

// maxMessage bounds an error's message, far below what the other side accepts.
const maxMessage = 4096

// NewErrorBody is the body that carries err to the other side.
func NewErrorBody(err error) ErrorBody {
	body := ErrorBody{Code: CodeInternal, Message: err.Error()}
	if len(body.Message) > maxMessage {
		body.Message = strings.ToValidUTF8(body.Message[:maxMessage], "") + "..."
	}
	for _, s := range codeErrors() {
		if errors.Is(err, s.err) {
			body.Code = s.code
			break
		}
	}
	return body
}

// Append appends the body of m to b.
func (m *ErrorBody) Append(b []byte) []byte {
	b = msgp.AppendMapHeader(b, 2)
	b = putString(b, "code", m.Code)
	return putString(b, "message", m.Message)
}

// Decode fills m from a body.
func (m *ErrorBody) Decode(body []byte) error {
	d := decoder{b: body}
	return d.message(func(key []byte) {
		switch string(key) {
		case "code":
			m.Code = d.str("code", 64)
		case "message":
			m.Message = d.str("message", 1<<16)
		}
	})
}

// Err turns the body into the error that callers test for.
func (m *ErrorBody) Err() error {
	for _, s := range codeErrors() {
		if m.Code == s.code {
			return fmt.Errorf("kvconnd: %w: %s", s.err, m.Message)
		}
	}
	return fmt.Errorf("kvconnd failed (%s): %s", m.Code, m.Message)
}
