// Package policy replays traces of prompts against eviction policies, to choose the one
// the store uses by measurement. The store's own policy is replayed with the store's own
// index.
package evictionbench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// Request is one prompt: ids of its blocks from the head on, each id standing for the
// block and everything before it.
type Request struct {
	Blocks []uint32
}

// traceLine is a line of the trace format of the FAST'25 paper on Mooncake.
type traceLine struct {
	HashIDs []uint32 `json:"hash_ids"`
}

// maxLineBytes bounds a line of a trace.
const maxLineBytes = 1 << 20

// ReadTrace reads a trace: one JSON object a line.
func ReadTrace(r io.Reader) ([]Request, error) {
	var out []Request
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLineBytes)
	for lines.Scan() {
		var l traceLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("read trace: line %d: %w", len(out)+1, err)
		}
		out = append(out, Request{Blocks: l.HashIDs})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return out, nil
}

// Cache is a policy with a capacity in blocks.
type Cache interface {
	// Use serves one prompt: it returns how many leading blocks were there, counts them as
	// used and adds the others.
	Use(blocks []uint32) (hits int)
}

// HitRate replays a trace and returns the part of all blocks that were hits, a block
// being a hit if it and everything before it was there.
func HitRate(c Cache, trace []Request) float64 {
	hits, all := 0, 0
	for _, r := range trace {
		hits += c.Use(r.Blocks)
		all += len(r.Blocks)
	}
	return float64(hits) / float64(all)
}
