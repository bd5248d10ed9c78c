package route

import (
	"errors"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/registry"
)

// Errors of [Router.Route] and of changing ranks.
var (
	// ErrUnknownModel means that no rank of the model is registered.
	ErrUnknownModel = errors.New("no rank serves the model")
	// ErrPromptTooLong means that the prompt has more tokens than [Options.MaxPromptTokens].
	ErrPromptTooLong = errors.New("the prompt is too long")
	// ErrBusy means that as many requests are in flight as can be tracked.
	ErrBusy = errors.New("too many requests are in flight")
	// ErrUnknownRank means that there is no such rank.
	ErrUnknownRank = errors.New("no such rank")
	// ErrRankExists means that another rank has the id.
	ErrRankExists = errors.New("the rank exists")
	// ErrTooManyRanks means that [Options.MaxRanks] are registered.
	ErrTooManyRanks = errors.New("too many ranks")
	// ErrMismatch means that ranks of one model, or of one node, contradict each other.
	ErrMismatch = errors.New("the ranks do not fit together")
	// ErrClosed means that the router was closed.
	ErrClosed = errors.New("the router is closed")
)

// Request is a request to be routed.
type Request struct {
	// Request is what the policy sees. Tokens counts only where Prompt is nil, as when it could not be
	// tokenized: then no prefix is looked for. ID, Match and Head are the router's own.
	policy.Request
	// Model is the name of a model or adapter; empty stands for the only model there is.
	Model string
	// Prompt is the prompt's token ids.
	Prompt []uint32
	// Scope separates equal tokens; the adapter is known from Model if it names one.
	Scope connector.Scope
	// Exclude are ranks that must not be chosen: those that failed this request before.
	Exclude []int32
	// Silent says that no end of the prefill will be reported, because the answer comes as a whole. If
	// the rank's prefill speed is known, the prefill is assumed to be over after twice its predicted time.
	Silent bool
	// MaybeSilent says that the end of the prefill may never be reported. It counts if it is; else the request counts as
	// queued until it finishes, but never as late.
	MaybeSilent bool
}

// Decision is where a request goes, or why nowhere, with the JSON names of the HTTP interface. It may be used
// again for the next one; its memory is then reused.
type Decision struct {
	policy.Decision
	// Handle names the request in reports until it finishes; 0 if it was not placed.
	Handle uint64 `json:"-"`
	// Model is the model of the ranks; the request may have named an adapter of it.
	Model string `json:"model"`
	// Endpoint is the chosen rank's server, Header the value that registry.RankHeader must have there,
	// "" if it must not be sent.
	Endpoint string `json:"endpoint"`
	Header   string `json:"-"`
	// Engine is the rank's, which may have more ways to be told that value.
	Engine registry.Engine `json:"-"`
	// PromptTokens is the length of the prompt.
	PromptTokens int `json:"prompt_tokens"`
	// Match is what the chosen rank has of the prompt, in tokens.
	Match policy.Match `json:"-"`
	// PinMissed is why a pin was not followed, "" if it was or there is none.
	PinMissed policy.Reason `json:"pin_missed,omitempty"`

	matches []policy.Match // the prefixes of all ranks
}

// reset empties d but for its memory.
func (d *Decision) reset() {
	*d = Decision{
		Decision: policy.Decision{Rank: -1, Index: -1, Reason: policy.ReasonNoRanks, Scores: d.Scores[:0]},
		matches:  d.matches[:0],
	}
}
