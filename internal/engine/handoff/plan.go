package handoff

import (
	"encoding/json"
	"fmt"

	"github.com/kvconn/kvconn/connector"
)

// plan is what the scheduler tells its ranks of one step. It is the engine's own business:
// the daemon sees the saves alone.
type plan struct {
	// Namespace is that of the scheduler, as hexadecimal digits.
	Namespace string
	Loads     []load
	// Saves is the leader's metadata.
	Saves []byte
}

// load is one request's load.
type load struct {
	Request   string
	Stretches []stretch
}

// stretch is a part of a load and where its blocks lie, for each shard of its group.
type stretch struct {
	connector.Stretch
	// Shards is empty where a block was not offered: the stretch fails.
	Shards []connector.HandoffShard
}

func (p *plan) encode() []byte {
	b, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("handoff: encode a plan: %v", err)) // it has no value that could fail
	}
	return b
}

func parsePlan(b []byte) (*plan, error) {
	p := new(plan)
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("decode a step's plan: %w", err)
	}
	return p, nil
}

// planLoad plans the load of what the engine has taken of an offer, nil for none.
func planLoad(o *connector.HandoffOffer, a *connector.Alloc, m *connector.Manifest) load {
	l := load{Request: a.Request}
	for s := range a.Stretches(m) {
		l.Stretches = append(l.Stretches, stretch{s, places(o, m.GroupShards(s.Group), s.First, s.First+len(s.Slots))})
	}
	return l
}

// places returns where the blocks [first, end) of those shards lie, nil if any was not
// offered.
func places(o *connector.HandoffOffer, shards []connector.Shard, first, end int) []connector.HandoffShard {
	if o == nil || first < o.First {
		return nil
	}
	var out []connector.HandoffShard
	for _, shard := range shards {
		for i := range o.Shards {
			if s := &o.Shards[i]; s.Shard == shard && end-o.First <= len(s.Blocks) {
				out = append(out, connector.HandoffShard{Shard: shard, Blocks: s.Blocks[first-o.First : end-o.First]})
			}
		}
	}
	if len(out) != len(shards) {
		return nil
	}
	return out
}
