// Package contents keeps count of what a store holds of each model, for status and metrics.
package contents

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/models"
	"github.com/kvconn/kvconn/store"
)

// Model is what a store holds of one model.
type Model struct {
	Model string `json:"model" label:"model"`
	// Namespaces are those with records: of other dtypes, revisions, versions of the engine and so on.
	Namespaces int   `json:"namespaces" metric:"namespaces" help:"Namespaces with records on disk, by model."`
	Records    int64 `json:"records" metric:"records" help:"Records on disk, by model."`
	// Bytes are those of payloads. Slots and headers take a few percent more.
	Bytes int64 `json:"bytes" metric:"bytes" help:"Bytes of payloads on disk, by model. Counted every half a minute, or less often where that takes long."`
}

const (
	// pause is the least time between two counts.
	pause = 30 * time.Second
	// share is how many times as long as a count the pause is at least: a count looks at every record.
	share = 50
	// unknown is the model of namespaces whose manifest was lost.
	unknown = "unknown"
)

// Counter counts again and again. Its zero value has counted nothing. Its methods may be called from any goroutine.
type Counter struct {
	last atomic.Pointer[[]Model]
}

// Run counts with look until ctx ends.
func (c *Counter) Run(ctx context.Context, look func() []store.Contents) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		start := time.Now()
		m := byModel(look())
		c.last.Store(&m)
		timer.Reset(max(pause, share*time.Since(start)))
	}
}

// Models returns the last count, the largest first, at most [models.MaxModels] and the rest as one. Callers do not change it.
func (c *Counter) Models() []Model {
	if m := c.last.Load(); m != nil {
		return *m
	}
	return nil
}

// byModel sums namespaces.
func byModel(all []store.Contents) []Model {
	sums := make(map[string]*Model)
	for i := range all {
		n := &all[i]
		if n.Records == 0 {
			continue
		}
		name := modelOf(n.Manifest)
		m := sums[name]
		if m == nil {
			m = &Model{Model: name}
			sums[name] = m
		}
		m.add(1, n.Records, n.Bytes)
	}
	list := make([]Model, 0, len(sums))
	for _, m := range sums {
		list = append(list, *m)
	}
	slices.SortFunc(list, func(a, b Model) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Model, b.Model)) })
	if len(list) <= models.MaxModels {
		return list
	}
	// A client may name a model as the rest is named: there is one series of a name.
	kept, other := make([]Model, 0, models.MaxModels+1), Model{Model: models.Other}
	for _, m := range list {
		if len(kept) < models.MaxModels && m.Model != models.Other {
			kept = append(kept, m)
		} else {
			other.add(m.Namespaces, m.Records, m.Bytes)
		}
	}
	return append(kept, other)
}

func (m *Model) add(namespaces int, records, bytes int64) {
	m.Namespaces += namespaces
	m.Records += records
	m.Bytes += bytes
}

// modelOf is the model that a manifest names, as metrics name it.
func modelOf(manifest []byte) string {
	var m struct {
		Model string `json:"model"`
	}
	if json.Unmarshal(manifest, &m) != nil || m.Model == "" {
		return unknown
	}
	return strings.ToValidUTF8(m.Model[:min(len(m.Model), models.MaxNameBytes)], "")
}
