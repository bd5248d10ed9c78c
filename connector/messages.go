// Package connector is the contract between an LLM engine and kvconnd: the types that
// name a block (key, proof, scope, namespace), describe engine memory (layout), and
// carry a request through its life (match, step, load, save), together with the hash
// chains that every part computes the same way. The framed protocol that transports
// them is in package wire, its two ends in packages client and server; the order in which
// an engine calls is the contract of server.Scheduler and server.Worker. Package fence is
// how an engine takes its memory back without an answer.
//
// The package knows nothing of disks, CUDA or scoring, and imports no other part of
// kvconn.
package connector

import (
	"errors"
	"iter"
	"math"
	"time"
)

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
	// Tiers asks for [Offer].Tiers, which costs a look at the faster tiers.
	Tiers bool
	// Trace is the request's W3C traceparent, empty without one. It goes into the daemon's log.
	Trace string
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
	// Tiers says where the offered tokens lie, the fastest tier first, if the request asked for
	// it. Entries without tokens mean nothing.
	Tiers [MaxTiers]TierTokens
	// Refused are tokens after the offer that are stored too, but take longer to load than to compute.
	Refused int
	// Why says why Tokens is 0. It is for the daemon's traces, and not told to the engine.
	Why Why
}

// TierTokens is a number of tokens in one tier.
type TierTokens struct {
	Tier   string
	Tokens int
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
	// TellSaves asks for [StepReply].Saves.
	TellSaves bool
	// Adapters are the LoRA adapters of new requests.
	Adapters []Adapter
}

// Adapter says what separates the KV of an adapter with a name: [Scope].LoRA of the requests that name it. It is empty where the
// engine neither loads nor saves with that adapter.
type Adapter struct{ Name, LoRA string }

// PlannedSave says that a step saves Count blocks of a request's layer group, from the one with
// index First on.
type PlannedSave struct {
	Request             string
	Group, First, Count int
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
	// Saves repeats the saves in Metadata, if the request asked for it.
	Saves []PlannedSave
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
	// Tiers counts the blocks that were loaded by the tier that they came from, and Took is the time
	// from the load's start to its end. Both are empty where the load never ran.
	Tiers []TierBlocks
	Took  time.Duration
}

// TierBlocks is what a load got from one tier.
type TierBlocks struct {
	Tier   string
	Blocks int
	Bytes  int64
}

// SaveResult counts what became of a step's saves on one rank.
type SaveResult struct {
	// Taken blocks were copied out and are on their way to the store, Dropped ones
	// found no room, Present ones were stored already.
	Taken, Dropped, Present int
}

// SaveRequest is a save by a plan whose end is reported later, where the engine computes after its calls have returned: on a
// device.
type SaveRequest struct {
	// ID is what the end is reported as.
	ID string
	// Metadata is the plan.
	Metadata []byte
	// Revoked is the number of revocations on the fence page when the engine made the call (fence.Ledger): what is
	// revoked after them is not kept.
	Revoked uint64
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
	// MaxTraceBytes bounds a traceparent, MaxTiers the tiers that are told apart, and MaxTierBytes
	// the name of one.
	MaxTraceBytes = 55
	MaxTiers      = 4
	MaxTierBytes  = 32
	// MaxStepRequests bounds the requests in one step.
	MaxStepRequests = 16384
	// MaxStepAdapters bounds the adapters that one step names.
	MaxStepAdapters = 1024
	// MaxSpans bounds the spans of a request, MaxSpanIDBytes the id of one.
	MaxSpans       = 4096
	MaxSpanIDBytes = 256
	// MaxKeyedBlocks bounds the blocks of one call by key, MaxKeyedParts its parts.
	MaxKeyedBlocks = 1 << 17
	MaxKeyedParts  = 1 << 14
)

// NoBlock stands in a block table where the engine keeps no block, because it is outside
// the layer group's window (TensorRT-LLM's BAD_PAGE_INDEX, vLLM's null block).
const NoBlock = math.MaxUint32

// Alloc tells that the engine has allocated blocks for a request whose offer it took.
type Alloc struct {
	Request string
	// Blocks is the request's whole block table, one list for each layer group.
	Blocks [][]uint32
	// Computed is the engine's own prefix hit. External are the tokens to load after it:
	// at most what was offered, and nothing if the engine does not want the offer.
	Computed, External int
	// GroupComputed is the engine's own prefix hit of each layer group where they differ;
	// nil means Computed for all. None is beyond Computed + External.
	GroupComputed []int
}

// Boundary is the number of tokens that are there once the load has ended.
func (a *Alloc) Boundary() int { return a.Computed + a.External }

// LoadRange is the half-open range of a group's block table that the load is to fill: from
// where the group's own hit ends, or the first block begins that its window reaches into,
// to the boundary, whole blocks. Where the group has all that it needs, first is end.
func (a *Alloc) LoadRange(g *Group, group, blockSize int) (first, end int) {
	computed := a.Computed
	if group < len(a.GroupComputed) {
		computed = a.GroupComputed[group]
	}
	boundary := a.Boundary()
	end = (boundary + blockSize - 1) / blockSize
	start := max(computed, g.FirstBlock(boundary, blockSize)*blockSize)
	if start >= boundary {
		return end, end
	}
	return start / blockSize, end
}

// Stretch is a run of consecutive blocks of one layer group's table.
type Stretch struct {
	Group int
	// First is the index of Slots[0] in the table.
	First int
	// Slots are the engine's block ids, none of them [NoBlock]: a view of the table.
	Slots []uint32
}

// Stretches yields what the load is to fill, group by group and in the order of the tables:
// the blocks of [Alloc.LoadRange] without those that the engine does not keep.
func (a *Alloc) Stretches(m *Manifest) iter.Seq[Stretch] {
	return func(yield func(Stretch) bool) {
		for g := range min(len(a.Blocks), len(m.Groups)) {
			table := a.Blocks[g]
			first, end := a.LoadRange(&m.Groups[g], g, m.BlockSize)
			for end = min(end, len(table)); first < end; first++ {
				from := first
				for first < end && table[first] != NoBlock {
					first++
				}
				if from < first && !yield(Stretch{Group: g, First: from, Slots: table[from:first:first]}) {
					return
				}
			}
		}
	}
}

// PlannedLoad lists what the load is to fill.
func (a *Alloc) PlannedLoad(m *Manifest) PlannedLoad {
	l := PlannedLoad{Request: a.Request}
	for s := range a.Stretches(m) {
		l.Blocks = append(l.Blocks, s.Slots...)
	}
	return l
}

// Errors that cross the protocol and that callers decide on.
var (
	// ErrUnknownRequest means that the leader does not know the beginning of a request.
	ErrUnknownRequest = errors.New("unknown request")
	// ErrNotRegistered means that a worker was asked to move blocks before its memory
	// was registered.
	ErrNotRegistered = errors.New("memory not registered")
	// ErrBadRequest means that a value is out of its bounds or does not fit the others.
	ErrBadRequest = errors.New("bad request")
	// ErrAgain means that what a call needs is not there now, and soon may be: a copier that is started again.
	ErrAgain = errors.New("not possible now, try again")
	// ErrVersion means that client and daemon have no protocol version in common.
	ErrVersion = errors.New("no common protocol version")
	// ErrProtocol means that the other side broke the protocol; the connection is closed.
	ErrProtocol = errors.New("protocol error")
)
