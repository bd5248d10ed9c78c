package agents

import (
	"cmp"
	"errors"
	"fmt"
)

// Options describe a fleet of agents. Zero fields take their defaults.
type Options struct {
	// Agents is the number of sessions that are open at any time: when one ends another begins. Default 32.
	Agents int
	// Requests is the length of the trace. Default 3,000: about three sessions of every agent.
	Requests int
	// RequestsPerS is the mean rate of arrivals. Default 1.
	RequestsPerS float64
	// MeanPromptTokens is the mean length of prompts. Default 120,000.
	MeanPromptTokens int
	// Reuse is the part of all prompt tokens that an earlier prompt had at the same place. Default 0.95.
	Reuse float64
	// Kinds is the number of different system prompts, with their tools. Default 4.
	Kinds int
	// MeanOutputTokens is the mean length of answers. Default 200: most answers call a tool.
	MeanOutputTokens int
	// BlockTokens is the number of tokens in a block. Default 512.
	BlockTokens int
	// Seed chooses everything that is random. Equal options give equal traces.
	Seed uint32
}

// EnsureDefaults fills in every field that is zero.
func (o *Options) EnsureDefaults() {
	o.Agents = cmp.Or(o.Agents, 32)
	o.Requests = cmp.Or(o.Requests, 3000)
	o.RequestsPerS = cmp.Or(o.RequestsPerS, 1)
	o.MeanPromptTokens = cmp.Or(o.MeanPromptTokens, 120_000)
	o.Reuse = cmp.Or(o.Reuse, 0.95)
	o.Kinds = cmp.Or(o.Kinds, 4)
	o.MeanOutputTokens = cmp.Or(o.MeanOutputTokens, 200)
	o.BlockTokens = cmp.Or(o.BlockTokens, 512)
}

// The most that is generated: a trace that fits into memory.
const (
	maxAgents       = 1 << 16
	maxRequests     = 1 << 20
	maxPromptTokens = 1 << 24
	maxBlocks       = 1 << 28 // of all prompts together
)

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Agents < 1 || o.Agents > maxAgents || o.Kinds < 1 || o.Kinds > maxAgents:
		return fmt.Errorf("agents: %d agents of %d kinds: want 1 to %d", o.Agents, o.Kinds, maxAgents)
	case o.Requests < 1 || o.Requests > maxRequests:
		return fmt.Errorf("agents: %d requests: want 1 to %d", o.Requests, maxRequests)
	case !(o.RequestsPerS >= 1e-6 && o.RequestsPerS <= 1e6):
		return fmt.Errorf("agents: %v requests a second: want 1e-6 to 1e6", o.RequestsPerS)
	case o.BlockTokens < 1 || o.MeanPromptTokens < 20*o.BlockTokens || o.MeanPromptTokens > maxPromptTokens:
		return fmt.Errorf("agents: a mean prompt of %d tokens: want 20 blocks to %d tokens", o.MeanPromptTokens, maxPromptTokens)
	case o.Requests*(o.MeanPromptTokens/o.BlockTokens) > maxBlocks:
		return fmt.Errorf("agents: the prompts have more than %d blocks", maxBlocks)
	case !(o.Reuse >= 0.5 && o.Reuse <= 0.999):
		return fmt.Errorf("agents: a reuse of %v: want 0.5 to 0.999", o.Reuse)
	case o.MeanOutputTokens < 1 || o.MeanOutputTokens > maxPromptTokens:
		return errors.New("agents: answers have at least one token")
	}
	return nil
}
