package top

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvconn/kvconn/internal/routerstatus"
	"github.com/kvconn/kvconn/internal/statustext"
	"github.com/kvconn/kvconn/router/route"
)

func routerText(w io.Writer, s, before *routerstatus.Status, o order) {
	fmt.Fprintf(w, "%s router, up %s, policy %s, %d of %d ranks ready\n", statustext.Clean(s.Version), upFor(s.UptimeS), statustext.Clean(s.Policy), s.Ready, s.Stats.Ranks)
	if s.Draining {
		fmt.Fprintf(w, "STOPPING: soon it takes no new requests\n")
	}
	for i := range s.Health.Reasons {
		r := &s.Health.Reasons[i]
		fmt.Fprintf(w, "UNHEALTHY: %s (%s)\n  %s\n", statustext.Clean(r.Detail), r.Code, r.Remedy)
	}
	if before != nil && before.UptimeS >= s.UptimeS {
		before = nil // another process, or no time has passed
	}
	routerRates(w, s, before)
	ranks(w, s.Ranks, o)
	routerModels(w, s.Ranks, o)
}

func routerRates(w io.Writer, s, before *routerstatus.Status) {
	if before == nil {
		fmt.Fprintf(w, "requests: %d in flight; answered -, failed -; prompts -\n", s.InFlight)
		return
	}
	seconds, p, was := s.UptimeS-before.UptimeS, &s.Proxy, &before.Proxy
	fmt.Fprintf(w, "requests: %d in flight; %.1f/s answered, %.1f/s failed, %.1f/s tried again\n", s.InFlight, per(p.OK, was.OK, seconds),
		per(p.Failed+p.Broken+p.Refused, was.Failed+was.Broken+was.Refused, seconds), per(p.Retries, was.Retries, seconds))
	prompt := less(s.PromptTokens, before.PromptTokens)
	share := func(now, before uint64) string {
		return statustext.Percent(float64(less(now, before)), float64(prompt))
	}
	fmt.Fprintf(w, "prompts: %.0f tokens/s, expected in the GPU %s, on disk %s, in the bucket %s\n", float64(prompt)/seconds,
		share(s.GPUTokens, before.GPUTokens), share(s.DiskTokens, before.DiskTokens), share(s.ObjectTokens, before.ObjectTokens))
}

func ranks(w io.Writer, list []route.RankInfo, o order) {
	if len(list) == 0 {
		fmt.Fprintf(w, "\nno rank is registered\n")
		return
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b route.RankInfo) int {
		switch o {
		case byHits:
			return cmp.Compare(b.GPUBlocks, a.GPUBlocks)
		case byName:
			return cmp.Compare(a.ID, b.ID)
		}
		return cmp.Compare(b.Load.ActiveRequests, a.Load.ActiveRequests)
	})
	fmt.Fprintf(w, "\nRANK\tREADY\tACTIVE\tGPU BLOCKS\tEVENTS\tDISK\tENDPOINT\tMODEL\n")
	for i := range list {
		r := &list[i]
		ready, events, disk := "yes", "-", "-"
		if !r.Ready {
			ready = "NO"
		}
		if r.EventFeed != nil {
			events = string(r.EventFeed.State)
		}
		if r.DiskFeed != nil {
			disk = string(r.DiskFeed.State)
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", r.ID, ready, r.Load.ActiveRequests, r.GPUBlocks, events, disk, statustext.Clean(r.Endpoint), statustext.Clean(r.Model))
	}
}

// modelRow is what the ranks of one model do together.
type modelRow struct {
	name                 string
	ranks, ready, active int
	blocks               int64
}

func routerModels(w io.Writer, list []route.RankInfo, o order) {
	byModel := make(map[string]*modelRow)
	var rows []*modelRow
	for i := range list {
		r := &list[i]
		m := byModel[r.Model]
		if m == nil {
			m = &modelRow{name: r.Model}
			byModel[r.Model], rows = m, append(rows, m)
		}
		m.ranks++
		if r.Ready {
			m.ready++
		}
		m.active += int(r.Load.ActiveRequests)
		m.blocks += r.GPUBlocks
	}
	if len(rows) == 0 {
		return
	}
	slices.SortFunc(rows, func(a, b *modelRow) int {
		name := strings.Compare(a.name, b.name)
		switch o {
		case byHits:
			return cmp.Or(cmp.Compare(b.blocks, a.blocks), name)
		case byName:
			return name
		}
		return cmp.Or(cmp.Compare(b.active, a.active), name)
	})
	fmt.Fprintf(w, "\nREADY\tACTIVE\tGPU BLOCKS\tMODEL\n")
	for _, m := range rows {
		fmt.Fprintf(w, "%d/%d\t%d\t%d\t%s\n", m.ready, m.ranks, m.active, m.blocks, statustext.Clean(m.name))
	}
}
