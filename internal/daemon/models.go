package daemon

import (
	"sort"
	"strings"

	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/worker"
)

const (
	// maxModels bounds the models that are counted apart, and with them the values of the
	// metrics' model label. Names come from clients.
	maxModels = 32
	// otherModels is the name under which the rest is counted.
	otherModels = "other"
	// maxModelBytes bounds a name.
	maxModelBytes = 128
)

// modelTotals are the counters of all engines and ranks of one model.
type modelTotals struct {
	totals
	model   string
	engines int
	ranks   int
	// prefillTokensPerS is that of the fastest engine, trimming the number of engines whose
	// offers are cut for the speed of the disk.
	prefillTokensPerS float64
	trimming          int
}

// modelCounts keeps counters by model. The first maxModels names of a daemon's life have
// their own. Its user's lock guards it.
type modelCounts map[string]*modelTotals

// of returns the counters of a model.
func (c modelCounts) of(model string) *modelTotals {
	model = strings.ToValidUTF8(model[:min(len(model), maxModelBytes)], "")
	t := c[model]
	if t == nil && len(c) >= maxModels {
		model = otherModels
		t = c[model]
	}
	if t == nil {
		t = &modelTotals{model: model}
		c[model] = t
	}
	return t
}

func (c modelCounts) addLeader(model string, s leader.Stats) { c.of(model).addLeader(s) }

func (c modelCounts) addWorker(model string, s worker.Stats) { c.of(model).addWorker(s) }

// modelTotals adds up by model, sorted by name.
func (b *backend) modelTotals() []modelTotals {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.schedulers { // a model has its name before its first engine leaves
		b.models.of(s.manifest.Model)
	}
	now := make(modelCounts, len(b.models))
	for name, past := range b.models {
		t := *past
		now[name] = &t
	}
	for s := range b.schedulers {
		t := now.of(s.manifest.Model)
		st := s.Stats()
		t.addLeader(st)
		t.engines++
		t.prefillTokensPerS = max(t.prefillTokensPerS, st.PrefillTokensPerS)
		if st.TierRefused {
			t.trimming++
		}
	}
	for w := range b.workers {
		t := now.of(w.model)
		t.addWorker(w.Stats())
		t.ranks++
	}
	for w := range b.draining {
		now.addWorker(w.model, w.Stats())
	}
	out := make([]modelTotals, 0, len(now))
	for _, t := range now {
		out = append(out, *t)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].model < out[j].model })
	return out
}
