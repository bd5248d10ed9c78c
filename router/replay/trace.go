package replay

import "github.com/kvconn/kvconn/router/policy"

// Request is one request of a trace.
type Request struct {
	// At is the arrival in seconds after the first request.
	At float64
	// InputTokens is the length of the prompt, OutputTokens that of the answer.
	InputTokens, OutputTokens int
	// Blocks are the token blocks of the prompt. Each number stands for a block and everything before it;
	// blocks are numbered from 0 by their first use. The last one may be partial.
	Blocks []int32
	// Conversation numbers the conversation that it belongs to, FirstTurn says that it opens it.
	Conversation int32
	FirstTurn    bool
}

// ConversationSource says where the conversations of a trace come from.
type ConversationSource string

const (
	// ConversationsRecorded: the trace names them.
	ConversationsRecorded ConversationSource = "recorded"
	// ConversationsDerived: from prompts that continue earlier ones; see [Trace.Conversations].
	ConversationsDerived ConversationSource = "derived from prefixes"
)

// Trace is a recorded sequence of requests, sorted by arrival.
type Trace struct {
	Requests []Request
	// BlockTokens is the number of tokens in a block.
	BlockTokens int
	// DistinctBlocks counts the blocks that differ: they are numbered below it.
	DistinctBlocks int
	// Conversations counts the conversations. Where they are derived, a request continues the
	// conversation of the latest request whose full blocks are all at its head; blocks at the head of
	// more than one request in a hundred are taken for a common system prompt and not considered.
	Conversations int
	// Source says where the conversations come from.
	Source ConversationSource
}

// Summary sums up a trace.
type Summary struct {
	Requests           int                `json:"requests"`
	BlockTokens        int                `json:"block_tokens"`
	Blocks             int                `json:"blocks"`
	DistinctBlocks     int                `json:"distinct_blocks"`
	InputTokens        int64              `json:"input_tokens"`
	OutputTokens       int64              `json:"output_tokens"`
	SpanSeconds        float64            `json:"span_s"`
	Conversations      int                `json:"conversations"`
	ConversationSource ConversationSource `json:"conversation_source"`
}

// Summary sums up the trace.
func (t *Trace) Summary() Summary {
	s := Summary{
		Requests: len(t.Requests), BlockTokens: t.BlockTokens, Conversations: t.Conversations, ConversationSource: t.Source,
	}
	seen := make([]bool, t.DistinctBlocks)
	for i := range t.Requests {
		r := &t.Requests[i]
		s.Blocks += len(r.Blocks)
		s.InputTokens += int64(r.InputTokens)
		s.OutputTokens += int64(r.OutputTokens)
		s.SpanSeconds = r.At
		for _, b := range r.Blocks {
			if !seen[b] {
				seen[b] = true
				s.DistinctBlocks++
			}
		}
	}
	return s
}

// tokensOf returns how many tokens of a prompt its first blocks hold.
func (t *Trace) tokensOf(r *Request, blocks int) int {
	return min(blocks*t.BlockTokens, r.InputTokens)
}

// match returns what a rank has of a prompt as policies want it, from the numbers of blocks at its head that are
// in the GPU, on disk and in the object store.
func (t *Trace) match(r *Request, gpu, disk, object int) policy.Match {
	g, d, o := t.tokensOf(r, gpu), t.tokensOf(r, max(gpu, disk)), t.tokensOf(r, max(gpu, disk, object))
	m := policy.Match{GPU: int32(g), Disk: int32(d - g), Object: int32(o - d), Usable: int32(o)}
	m.LoadDisk, m.LoadObject = m.Disk, m.Object
	return m
}

func (t *Trace) keepFullBlocks() *Trace {
	full := *t
	full.Requests = make([]Request, len(t.Requests))
	for i, r := range t.Requests {
		r.Blocks = r.Blocks[:min(len(r.Blocks), r.InputTokens/t.BlockTokens)]
		full.Requests[i] = r
	}
	return &full
}
