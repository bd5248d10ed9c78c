package route

import (
	"errors"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/policy"
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
	// ErrRankExists means that the id is taken.
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
	// Model is the name of a model or adapter; empty stands for the only model there is.
	Model string
	// Tokens is the prompt. If it is nil, as when it could not be tokenized, Length tokens are counted
	// as load and no prefix is looked for.
	Tokens []uint32
	Length int
	// Scope separates equal tokens; the adapter is known from Model if it names one.
	Scope connector.Scope
	// Conversation, FirstTurn and Content are as in policy.Request.
	Conversation string
	FirstTurn    bool
	Content      string
	// Pin is the rank asked for, or policy.NoPin; Strict says that no other will do.
	Pin    int32
	Strict bool
	// Exclude are ranks that must not be chosen: those that failed this request before.
	Exclude []int32
	// Silent says that nobody will report the end of the prefill, as of an answer that comes as a whole:
	// it is taken for done when it should have been twice over, if the rank's speed is known.
	Silent bool
	// Explain asks for the scores and prefixes of all ranks.
	Explain bool
}

// Decision is where a request goes, or why nowhere. It may be used again for the next one; its memory is
// then reused.
type Decision struct {
	policy.Decision
	// Handle names the request in reports until it finishes; 0 if it was not placed.
	Handle uint64
	// Model is the model of the ranks, of which the request's may be an adapter.
	Model string
	// Endpoint is the chosen rank's server, Header the value that registry.RankHeader must have there,
	// "" if it must not be sent.
	Endpoint, Header string
	// Match is what the chosen rank has of the prompt, in tokens.
	Match policy.Match
	// PinMissed is why a pin that is not strict was not followed, else policy.ReasonPin.
	PinMissed policy.Reason
	// Matches are the prefixes of all ranks, in the order of Scores, if asked for.
	Matches []policy.Match
}

// reset empties d but for its memory.
func (d *Decision) reset() {
	*d = Decision{
		Decision: policy.Decision{Rank: -1, Index: -1, Reason: policy.ReasonNoRanks, Scores: d.Scores[:0]},
		Matches:  d.Matches[:0], PinMissed: policy.ReasonPin,
	}
}
