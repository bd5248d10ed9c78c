package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// Request is a prompt to complete.
type Request struct {
	// ID is unique among the requests that the engine and the connector know of.
	ID     string
	Prompt []uint32
	// MaxTokens is the number of tokens to generate; there is no end token.
	MaxTokens int
	// Scope separates equal prompts in every cache. Its salt does not change the tokens,
	// its LoRA adapter does.
	Scope connector.Scope
	// Spans say which tokens of the prompt stand for other content, ordered by Start. It is
	// drawn from the span's ID and computed in their place.
	Spans []connector.Span
	// NoLoad and NoSave opt the request out of the connector's loads and saves.
	NoLoad, NoSave bool
	// Trace is the W3C traceparent that the request came with, empty without one.
	Trace string
}

// Result is what became of a request.
type Result struct {
	ID string
	// Tokens are the generated tokens.
	Tokens []uint32
	// Logits is the hash of all logits that Tokens were drawn from: a wrong bit of KV that is
	// too small to change a token changes this.
	Logits uint64
	// LocalCachedTokens came from the engine's own prefix cache and CachedTokens from the
	// connector when the request was admitted, the last time if it was preempted.
	LocalCachedTokens, CachedTokens int
	// RecomputedTokens were offered by the connector and computed after their load
	// failed or was thrown away.
	RecomputedTokens int
	// Preemptions is how often the request lost its blocks to another.
	Preemptions int
	// TTFT is the time from Submit to the first token.
	TTFT time.Duration
	// Aborted is set where the request was ended by Abort.
	Aborted bool
}

// phase is where a request stands.
type phase int

const (
	waiting phase = iota
	// loading requests wait for their KV and are not computed (vLLM:
	// WAITING_FOR_REMOTE_KVS).
	loading
	running
)

// request is a Request in the engine.
type request struct {
	Request
	phase phase
	// tokens are the prompt and what was generated; sampling is the number of tokens that
	// planned steps are still to generate.
	tokens   []uint32
	sampling int
	// blocks are the block tables, one for each layer group and all of one length, with
	// NoBlock before a window. The KV of the first computed tokens is there, is being
	// loaded, or is computed by a planned step.
	blocks   [][]uint32
	computed int
	// life is counted up when the request loses its blocks: what steps planned before did
	// to them is then of no interest.
	life int
	// load is the load in flight, if there is one.
	load *load
	// keys are the block keys of tokens' full blocks, those that were needed so far;
	// published blocks are findable in the pool.
	keys      []connector.Key
	published int
	// told tokens and toldBlocks are known to the connector, the tokens in session.
	told, toldBlocks int
	session          uint64
	// failedLoads counts loads that brought not one good block.
	failedLoads int
	// ended requests are only here because of their load; restart is set where the request
	// starts over when its load has ended; spoilt where what the step computed is of no
	// use, as the load before it has failed.
	ended, restart, spoilt bool
	submitted              time.Time
	result                 Result
}

// load is a load in flight.
type load struct {
	// from is the number of tokens that were there before, to the number after.
	from, to int
	// index is the place in its block table of each block that the load fills.
	index map[uint32]int
	sync  bool
}

// chain returns the keys of the first n blocks.
func (r *request) chain(n, blockSize int) []connector.Key {
	for len(r.keys) < n {
		i := len(r.keys)
		parent := connector.RootKey(blockSize, r.Scope)
		if i > 0 {
			parent = r.keys[i-1]
		}
		start, end := i*blockSize, (i+1)*blockSize
		text := connector.AppendExtra(connector.AppendTokens(nil, r.tokens[start:end]), r.Spans, start, end)
		key, _ := connector.NextKey(parent, text, nil)
		r.keys = append(r.keys, key)
	}
	return r.keys[:n]
}

// total is the number of tokens when the request ends.
func (r *request) total() int { return len(r.Prompt) + r.MaxTokens }

// chunk is what the model is to compute: the tokens [start, start+count) with the given
// block tables.
func (r *request) chunk(start, count int, blocks [][]uint32) model.Chunk {
	c := model.Chunk{Tokens: r.tokens[start : start+count], Start: start, Blocks: blocks}
	if r.Scope.LoRA != "" {
		c.Adapter = xxh3.HashString(r.Scope.LoRA) | 1
	}
	for _, s := range r.Spans {
		for pos := max(start, s.Start); pos < min(start+count, s.End); pos++ {
			if c.Content == nil {
				c.Content = make([]uint64, count)
			}
			c.Content[pos-start] = (xxh3.Hash(s.ID) + uint64(pos-s.Start)<<1) | 1
		}
	}
	return c
}

// validate reports why a request can never be served.
func (q *Request) validate(o *Options) error {
	need := len(q.Prompt) + q.MaxTokens
	switch {
	case q.ID == "":
		return errors.New("no id")
	case len(q.Prompt) == 0 || q.MaxTokens < 1:
		return fmt.Errorf("%d prompt tokens, %d to generate: want at least 1 each", len(q.Prompt), q.MaxTokens)
	case need > o.Model.MaxContext:
		return fmt.Errorf("%d tokens: the context has %d", need, o.Model.MaxContext)
	}
	// A request whose chunks are as long as they may be needs this many blocks.
	if blocks := len(o.Model.Groups()) * ((need + o.BlockSize - 1) / o.BlockSize); blocks > o.Blocks-1 {
		return fmt.Errorf("%d blocks: the KV cache has %d", blocks, o.Blocks-1)
	}
	for _, t := range q.Prompt {
		if int(t) >= o.Model.Vocab {
			return fmt.Errorf("token %d: the vocabulary has %d", t, o.Model.Vocab)
		}
	}
	end := 0
	for _, s := range q.Spans {
		if s.Start < end || s.End <= s.Start || s.End > len(q.Prompt) || len(s.ID) == 0 {
			return fmt.Errorf("span [%d, %d): want an id, and order inside of the prompt", s.Start, s.End)
		}
		end = s.End
	}
	return nil
}

// EncodeText returns the bytes of a text as tokens: the byte-level vocabulary of the
// built-in models.
func EncodeText(text string) []uint32 {
	tokens := make([]uint32, len(text))
	for i := range len(text) {
		tokens[i] = uint32(text[i])
	}
	return tokens
}
