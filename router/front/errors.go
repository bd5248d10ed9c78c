package front

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/tokenize"
)

// Error is an answer that is an error.
type Error struct {
	// Status is the HTTP status, Code names the error for programs, Message explains it to people.
	Status        int
	Code, Message string
	// Retry says that the same request may succeed later.
	Retry bool
	// Scores are the ranks' scores, of a decision that was to be explained.
	Scores []policy.Score
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// BadRequest returns the error of a request that cannot be understood.
func BadRequest(format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Code: "invalid_request", Message: fmt.Sprintf(format, args...)}
}

// ErrorOf returns err as an answer: an [Error] as it is, errors of packages route and tokenize by their meaning.
func ErrorOf(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, route.ErrPromptTooLong) || errors.Is(err, tokenize.ErrTooLong):
		return &Error{Status: http.StatusBadRequest, Code: "prompt_too_long", Message: err.Error()}
	case errors.Is(err, route.ErrUnknownModel):
		return &Error{Status: http.StatusNotFound, Code: "model_not_found", Message: err.Error()}
	case errors.Is(err, route.ErrBusy):
		return &Error{Status: http.StatusServiceUnavailable, Code: "busy", Message: err.Error(), Retry: true}
	default:
		return &Error{Status: http.StatusServiceUnavailable, Code: "cancelled", Message: err.Error()}
	}
}

// Refusal returns the answer to a request that no rank takes.
func Refusal(d *policy.Decision) *Error {
	e := &Error{
		Status: http.StatusServiceUnavailable, Code: string(d.Reason), Message: "no rank takes the request", Retry: d.Reason.Retry(), Scores: d.Scores,
	}
	switch d.Reason {
	case policy.ReasonNoRanks:
		e.Message = "no rank is ready that could take the request; GET /v1/ranks says why not"
	case policy.ReasonAllFull:
		e.Message = "all ranks that are ready are full: max_active or max_tokens"
	case policy.ReasonFairShare:
		e.Message = "all ranks that are ready have had their fair share of this batch"
	case policy.ReasonPinUnknown:
		e.Status, e.Message = http.StatusNotFound, "the request is pinned to a rank that this model does not have"
	case policy.ReasonPinNotReady:
		e.Message = "the rank that the request is pinned to is not ready, or has failed it; GET /v1/ranks says why"
	case policy.ReasonPinFull:
		e.Message = "the rank that the request is pinned to is full: max_active or max_tokens"
	case policy.ReasonInvalid:
		e.Status, e.Message = http.StatusBadRequest, "the request cannot be routed: a number in it is out of range"
	}
	return e
}

// Failure is the body of an error, in OpenAI's form.
type Failure struct {
	Error FailureText `json:"error"`
	// Scores are those of the ranks, of a decision that was to be explained.
	Scores []policy.Score `json:"scores,omitempty"`
}

// FailureText says what is wrong.
type FailureText struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Code    string `json:"code"`
}

// Body returns the body of the answer.
func (e *Error) Body() Failure {
	return Failure{Error: FailureText{Message: e.Message, Type: "router_error", Code: e.Code}, Scores: e.Scores}
}

// Write answers with the error.
func (e *Error) Write(w http.ResponseWriter) {
	if e.Retry {
		w.Header().Set("Retry-After", "1")
	}
	httpserve.WriteJSON(w, e.Status, e.Body(), "")
}
