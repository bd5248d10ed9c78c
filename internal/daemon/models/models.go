// Package models sums the counters of engines and ranks by their model, for a bounded number of models.
package models

import (
	"strings"

	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/worker"
)

const (
	// MaxModels bounds the models that are counted separately, and with them the values of the
	// metrics' model label. Names come from clients.
	MaxModels = 32
	// Other is the name under which the rest is counted.
	Other = "other"
	// MaxNameBytes bounds a name.
	MaxNameBytes = 128
)

// Sums are the sums of the counters of leaders and workers.
type Sums struct {
	Leader leader.Stats `metric:""`
	Worker worker.Stats `metric:""`
}

// Totals are the counters of all engines and ranks of one model. Metrics show those with a
// tag.
type Totals struct {
	// Sum has all counters.
	Sum     Sums
	Model   string `label:"model"`
	Engines int    `metric:"engines" help:"Engine instances connected, by model."`
	Ranks   int    `metric:"ranks" help:"Ranks connected, by model."`

	PrefillTokensPerS float64 `metric:"prefill_tokens_per_second" help:"Prefill speed that decisions are made with, of the fastest engine; 0 if it is not known."`
	Trimming          int     `metric:"trimming_engines" help:"Engines whose offers are cut for the speed of the disk."`

	// These are taken from Sum by [Totals.Show].
	QueriedTokens uint64 `metric:"queried_tokens_total" help:"Tokens of requests at their first match, but for those that the engine had itself, by model."`
	OfferedTokens uint64 `metric:"offered_tokens_total" help:"Tokens offered at the first match, by model."`
	LoadedBytes   uint64 `metric:"loaded_bytes_total" help:"Bytes that reached engine memory, by model."`
	SavedBytes    uint64 `metric:"saved_bytes_total" help:"Bytes taken over by the store, by model."`
	FailedBlocks  uint64 `metric:"failed_blocks_total" help:"Blocks of loads that failed, by model."`
	DroppedBlocks uint64 `metric:"dropped_blocks_total" help:"Blocks not saved, by model."`
}

// Show takes what metrics show from Sum.
func (t *Totals) Show() {
	l, w := &t.Sum.Leader, &t.Sum.Worker
	t.QueriedTokens, t.OfferedTokens = l.QueriedTokens, l.OfferedTokens
	t.LoadedBytes, t.SavedBytes, t.FailedBlocks, t.DroppedBlocks = w.LoadedBytes, w.SavedBytes, w.FailedBlocks, w.DroppedBlocks
}

// AddLeader adds the counters of an engine.
func (t *Totals) AddLeader(s leader.Stats) { counters.Add(&t.Sum.Leader, &s) }

// AddWorker adds the counters of a rank.
func (t *Totals) AddWorker(s worker.Stats) { counters.Add(&t.Sum.Worker, &s) }

// Counts keeps counters by model. The first MaxModels names of a daemon's life have
// their own. Its user's lock guards it.
type Counts map[string]*Totals

// Of returns the counters of a model, which are made if there are none.
func (c Counts) Of(model string) *Totals {
	model = strings.ToValidUTF8(model[:min(len(model), MaxNameBytes)], "")
	t := c[model]
	if t == nil && len(c) >= MaxModels {
		model = Other
		t = c[model]
	}
	if t == nil {
		t = &Totals{Model: model}
		c[model] = t
	}
	return t
}
