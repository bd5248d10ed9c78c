package connector

// MatchRequest asks how much of a prompt the store can give back. It may be repeated
// for the same request any number of times.
type MatchRequest struct {
	// Request is the engine's id of the request.
	Request string
	// From is the index of Tokens[0] in the request's tokens: 0 at first, later the number
	// of tokens that the leader knows. A leader that knows fewer answers
	// [ErrUnknownRequest]; the caller then repeats with From 0.
	From int
	// Tokens are the request's token ids from From on, output tokens included where a
	// preempted request is resumed.
	Tokens []uint32
	// PromptTokens is the length of the prompt, where a leader that saves prompts only
	// stops; 0 means all tokens known at the first match.
	PromptTokens int
	// Computed is the number of tokens that the engine holds already.
	Computed int
	Scope    Scope
	// Spans say which tokens stand for other content, ordered by Start. A request whose spans
	// have changed starts over.
	Spans []Span
	// NoLoad and NoSave opt the request out of loading and of saving.
	NoLoad, NoSave bool
}

// Offer is what the leader promises beyond what the GPU holds.
type Offer struct {
	// Tokens can be loaded beyond MatchRequest.Computed.
	Tokens int
	// Async says that the load runs beside the engine's steps.
	Async bool
	// Handoff says where the offered bytes lie, for engines that copy them themselves (handoff
	// mode); nil for others.
	Handoff *HandoffOffer
}

// Scheduled is one request that the engine computes in this step.
type Scheduled struct {
	Request string
	// NewBlocks extends the request's block table of each layer group or, if Reset,
	// replaces it.
	NewBlocks [][]uint32
	// Reset is set where the request is new to the workers or resumed.
	Reset bool
	// Computed is the number of tokens computed before this step, Count those computed
	// by it.
	Computed, Count int
	// NewTokens are tokens that the leader does not know yet, From the index of the first.
	From      int
	NewTokens []uint32
}

// StepRequest is one engine scheduler iteration.
type StepRequest struct {
	Allocs    []Alloc
	Scheduled []Scheduled
	Preempted []string
	// Finished requests are forgotten once the step's saves are planned.
	Finished []string
}

// PlannedLoad names the engine blocks that a load of this step will fill, those of all
// layer groups together.
type PlannedLoad struct {
	Request string
	Blocks  []uint32
}

// StepReply is the leader's answer to a step.
type StepReply struct {
	// Metadata is opaque to the engine, which hands it to every rank's worker. Empty
	// means that there is nothing to do.
	Metadata []byte
	// Loads repeats the loads in Metadata in a form that the engine's side can read, so that
	// it can report them as failed when the daemon is gone. In handoff mode there are none:
	// Metadata holds saves alone, and the engine's side plans the loads.
	Loads []PlannedLoad
}

// LoadedReport tells the leader how loads ended, all ranks taken together.
type LoadedReport struct {
	Done          []string
	InvalidBlocks []uint32
}

// FinishedLoad is one load that a worker has ended. FailedBlocks are engine block ids
// whose bytes must not be used.
type FinishedLoad struct {
	Request      string
	FailedBlocks []uint32
}

// SaveResult counts what became of a step's saves on one rank.
type SaveResult struct {
	// Taken blocks were copied out and are on their way to the store, Dropped ones
	// found no room, Present ones were stored already.
	Taken, Dropped, Present int
}

// KeyedBlocks names consecutive blocks of one prompt and layer group by the engine's own
// prefix hashes (key scheme "engine").
type KeyedBlocks struct {
	Group int
	// Scope is kept with what is saved, if the engine gives it. The hashes separate scopes,
	// not this.
	Scope Scope
	// Parent is the hash before Hashes[0], zero at the root.
	Parent Proof
	Hashes []Proof
	// Slots are the engine's block ids, as many as Hashes.
	Slots []uint32
}

// Bounds of requests, checked on both ends.
const (
	// MaxFrameBytes bounds the body of a frame, and with it a plan and the rest of its answer.
	MaxFrameBytes = 16 << 20
	// MaxTokens is the largest prompt.
	MaxTokens = 2 << 20
	// MaxIDBytes bounds a request id, MaxScopeBytes each part of a scope.
	MaxIDBytes    = 512
	MaxScopeBytes = 4096
	// MaxStepRequests bounds the requests in one step.
	MaxStepRequests = 16384
	// MaxSpans bounds the spans of a request, MaxSpanIDBytes the id of one.
	MaxSpans       = 4096
	MaxSpanIDBytes = 256
	// MaxKeyedBlocks bounds the blocks of one call by key.
	MaxKeyedBlocks = 1 << 17
)
