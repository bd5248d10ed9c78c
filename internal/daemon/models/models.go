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

// Totals are the counters of all engines and ranks of one model.
type Totals struct {
	// Sum has all counters.
	Sum     Sums   `metric:""`
	Model   string `label:"model"`
	Engines int    `metric:"model_engines" help:"Engine instances connected, by model."`
	Ranks   int    `metric:"model_ranks" help:"Ranks connected, by model."`

	PrefillTokensPerS float64 `metric:"model_prefill_tokens_per_second" help:"Prefill speed that decisions are made with: that of the model's fastest engine; 0 while it is not known."`
	Trimming          int     `metric:"model_trimming_engines" help:"Engines that are offered less than what is stored, because the disk is slower than their prefill."`
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
