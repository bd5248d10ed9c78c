package engine

import (
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Request is a prompt to complete.
type Request struct {
	// ID is unique among the requests that the engine and the connector know of.
	ID     string
	Prompt []uint32
	// MaxTokens is the number of tokens to generate; there is no end token.
	MaxTokens int
	// Scope separates equal prompts in every cache. It does not change the tokens.
	Scope connector.Scope
	// NoLoad and NoSave opt the request out of the connector's loads and saves.
	NoLoad, NoSave bool
}

// Result is what became of a request.
type Result struct {
	ID string
	// Tokens are the generated tokens.
	Tokens []uint32
	// LocalCachedTokens came from the engine's own prefix cache and CachedTokens from the
	// connector when the request was admitted, the last time if it was preempted.
	LocalCachedTokens, CachedTokens int
	// RecomputedTokens were offered by the connector and computed after their load
	// failed.
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
	// tokens are the prompt and what was generated.
	tokens []uint32
	// blocks is the block table; the KV of the first computed tokens is in it, or is
	// being loaded.
	blocks   []uint32
	computed int
	// keys are the block keys of tokens' full blocks, as far as they were needed;
	// published blocks are findable in the pool.
	keys      []connector.Key
	published int
	// told tokens and toldBlocks are known to the connector.
	told, toldBlocks int
	// failedLoads counts loads of which not one block was good.
	failedLoads int
	submitted   time.Time
	result      Result
}

// chain returns the keys of the first n blocks.
func (r *request) chain(n, blockSize int) []connector.Key {
	for len(r.keys) < n {
		i := len(r.keys)
		parent := connector.RootKey(blockSize, r.Scope)
		if i > 0 {
			parent = r.keys[i-1]
		}
		key, _ := connector.NextKey(parent, connector.AppendTokens(nil, r.tokens[i*blockSize:(i+1)*blockSize]), nil)
		r.keys = append(r.keys, key)
	}
	return r.keys[:n]
}
