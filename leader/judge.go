package leader

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader/doubt"
)

// judge takes in how a request's loads ended; bad is the first of its blocks that failed, or below 0. A block that the
// tiers here still have failed elsewhere.
func (l *Leader) judge(r *request, bad int) {
	switch {
	case len(r.loads) == 0:
	case bad < 0 || !l.elsewhere():
		l.doubt = doubt.Doubt{}
	case bad < len(r.keys) && l.hasAll(r.keys[bad:bad+1]):
		l.doubt.Failed(r.loads[len(r.loads)-1].step, l.steps, l.opts.Now())
	default:
		l.doubt.Over(r.id)
	}
}

// hasAll reports whether the tiers here have all shards of a block.
func (l *Leader) hasAll(block []connector.Key) bool {
	shards := l.prefix
	if len(shards) == 0 {
		shards = l.groups[0].Shards
	}
	l.at = append(l.at[:0], false)
	l.have.Blocks(shards, block, l.at)
	return l.at[0]
}

// elsewhere reports whether ranks of the engine are on other nodes.
func (h *hits) elsewhere() bool {
	here := h.here.Load()
	return here != nil && here.part
}
