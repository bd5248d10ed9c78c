package connector

import (
	"slices"
	"time"
)

// PresentRequest asks which blocks of a request can be loaded, by the engine's own prefix hashes
// (key scheme "engine"). It may be repeated at will.
type PresentRequest struct {
	// Request is the engine's id of the request.
	Request string
	// Hashes are those of the request's blocks from block First on, Parent the hash before them,
	// zero at the root.
	First  int
	Parent Proof
	// AnyParent says that the engine does not know the parent, which is not the same as the root.
	// Parent is zero then.
	AnyParent bool
	Hashes    []Proof
	// Held blocks, from the first of the prompt, are in the engine's own pool.
	Held int
	// NoLoad opts the request out of loading.
	NoLoad bool
	// Trace is the request's W3C traceparent, empty without one. It need not be repeated.
	Trace string
}

// KeyedPart names consecutive blocks of one prompt and layer group by the engine's own hashes.
type KeyedPart struct {
	Group int
	// Parent is the hash before Hashes[0], zero at the root.
	Parent Proof
	// AnyParent says that the engine does not know the parent of a load, which is not the same as the
	// root: the first block is verified by its own hash alone. Parent is zero then. A save must name its
	// parent.
	AnyParent bool
	Hashes    []Proof
	// Slots are the engine's block ids, as many as Hashes.
	Slots []uint32
}

// KeyedMove is a load or a save by key. It is one, however many parts it has, and ends once.
type KeyedMove struct {
	// ID is what the end is reported as.
	ID string
	// Request is the request that a load is for, empty where ID is. A save has none.
	Request string
	Parts   []KeyedPart
	// Scope is kept with what is saved, if the engine gives it. The hashes separate scopes,
	// not this.
	Scope Scope
	// Wait, if not 0, asks for the answer at the end, and bounds the time until then.
	Wait time.Duration
}

// Owner is the id of the request that a load is for.
func (m *KeyedMove) Owner() string {
	if m.Request != "" {
		return m.Request
	}
	return m.ID
}

// AnyParent reports whether a part may have any parent.
func (m *KeyedMove) AnyParent() bool {
	return slices.ContainsFunc(m.Parts, func(p KeyedPart) bool { return p.AnyParent })
}

// Blocks is the number of blocks of all parts.
func (m *KeyedMove) Blocks() int {
	n := 0
	for i := range m.Parts {
		n += len(m.Parts[i].Hashes)
	}
	return n
}

// FetchResult is what came of a load that the caller has waited for: nothing writes to its slots any
// more.
type FetchResult struct {
	// Done has a bitmap for each part: bit i%8 of byte i/8 is set if its block i is in its slot.
	Done [][]byte
	// Tiers are where those blocks came from, and Took is the time from the load's start to its end.
	Tiers []TierBlocks
	Took  time.Duration
}

// PutResult is what came of a save that the caller has waited for: nothing reads its slots any more.
type PutResult struct {
	// Done has a bitmap for each part, as in [FetchResult]: what is stored, or on its way there.
	Done [][]byte
	SaveResult
}

// TouchRequest ends a request: its blocks were used.
type TouchRequest struct {
	Request string
	// Hashes are those of the blocks that the request used, from the first of the prompt.
	Hashes []Proof
	// Tokens were computed in Seconds of prefill that the client has seen; 0 if it saw none.
	Tokens  int
	Seconds float64
}

// StoredPut is one save by key, or by a [SaveRequest], that a worker has ended: its slots are the engine's again.
type StoredPut struct {
	ID string
	SaveResult
}

// Polled is what has ended on a worker since the last poll.
type Polled struct {
	Finished []FinishedLoad
	Stored   []StoredPut
}
