package top

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/daemon/contents"
	"github.com/kvconn/kvconn/internal/statustext"
)

// text is a look for people, with rates since the one before, if there is one of the same process.
func text(now, before look, o order) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	if now.daemon != nil {
		daemonText(w, now.daemon, before.daemon, o)
	} else {
		routerText(w, now.router, before.router, o)
	}
	_ = w.Flush() // a strings.Builder takes all
	return b.String()
}

func daemonText(w io.Writer, s, before *daemon.Status, o order) {
	fmt.Fprintf(w, "%s, up %s, %s\n", statustext.Clean(s.Version), upFor(s.UptimeS), s.Socket)
	if opening := s.Opening; opening != nil {
		fmt.Fprintf(w, "OPENING: %s\n", opening)
	}
	for i := range s.Health.Reasons {
		h := &s.Health.Reasons[i]
		fmt.Fprintf(w, "UNHEALTHY: %s (%s)\n  %s\n", statustext.Clean(h.Detail), h.Code, h.Remedy)
	}
	r := statustext.Since(before, s)
	rates(w, r)
	fmt.Fprintf(w, "queues: %d loads, %d reads waiting, %s to write; %d blocks dropped, %d failed in all\n", s.Queues.LoadsInFlight,
		s.Queues.QueuedReads, statustext.Size(s.Queues.WriteInFlightBytes), s.Totals.Transfers.DroppedBlocks, s.Totals.Transfers.FailedBlocks)
	if r == nil {
		before = nil // another process, or no time has passed
	}
	tiers(w, s, before)
	engines(w, s, before, o)
	models(w, s, o)
}

func rates(w io.Writer, r *statustext.Rates) {
	if r == nil {
		fmt.Fprintf(w, "load -, save -, disk read -; asked -, hits -\n")
		return
	}
	hits := "-"
	if r.Hit >= 0 {
		hits = statustext.Percent(r.Hit, 1)
	}
	fmt.Fprintf(w, "load %s, save %s, disk read %s; asked %.0f tokens/s, hits %s\n", speed(r.LoadBytesPerS), speed(r.SaveBytesPerS), speed(r.DiskReadBytesPerS),
		r.QueriedTokensPerS, hits)
}

func tiers(w io.Writer, s, before *daemon.Status) {
	fmt.Fprintf(w, "\nTIER\tRECORDS\tUSED\tOF\tFULL\tHITS/S\n")
	for i := range s.Tiers {
		t := &s.Tiers[i]
		hits := "-"
		if before != nil {
			if at := slices.IndexFunc(before.Tiers, func(b daemon.TierStatus) bool { return b.Tier == t.Tier }); at >= 0 {
				hits = fmt.Sprintf("%.0f", per(t.Hits, before.Tiers[at].Hits, s.UptimeS-before.UptimeS))
			}
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", t.Tier, t.Records, statustext.Size(t.UsedBytes), statustext.Size(t.ReachableBytes),
			statustext.Percent(float64(t.UsedBytes), float64(t.ReachableBytes)), hits)
	}
}

// engineRow is one engine in the interval, or since it connected where there is no interval.
type engineRow struct {
	name, model            string
	ranks, needed          int
	asked, offered, loaded uint64
	seconds                float64
	notReady               bool
}

func (r *engineRow) hits() float64 { return float64(r.offered) / float64(max(1, r.asked)) }

func engines(w io.Writer, s, before *daemon.Status, o order) {
	if len(s.Engines) == 0 {
		fmt.Fprintf(w, "\nno engine is connected\n")
		return
	}
	rows := engineRows(s, before)
	slices.SortStableFunc(rows, func(a, b engineRow) int {
		byUsed := cmp.Or(cmp.Compare(b.asked, a.asked), cmp.Compare(b.loaded, a.loaded))
		switch o {
		case byHits:
			return cmp.Or(cmp.Compare(b.hits(), a.hits()), byUsed, cmp.Compare(a.name, b.name))
		case byName:
			return cmp.Compare(a.name, b.name)
		}
		return cmp.Or(byUsed, cmp.Compare(a.name, b.name))
	})
	fmt.Fprintf(w, "\nENGINE\tRANKS\tASKED\tHITS\tLOADED\tMODEL\n")
	for i := range rows {
		r := &rows[i]
		asked, loaded := "-", "-"
		if r.seconds > 0 {
			asked, loaded = fmt.Sprintf("%.0f/s", float64(r.asked)/r.seconds), speed(float64(r.loaded)/r.seconds)
		}
		if r.notReady {
			asked = "NOT READY"
		}
		fmt.Fprintf(w, "%s\t%d/%d\t%s\t%s\t%s\t%s\n", statustext.Short(r.name), r.ranks, r.needed, asked,
			statustext.Percent(float64(r.offered), float64(r.asked)), loaded, statustext.Clean(r.model))
	}
}

func engineRows(s, before *daemon.Status) []engineRow {
	rows := make([]engineRow, len(s.Engines))
	for i := range s.Engines {
		e := &s.Engines[i]
		rows[i] = engineRow{name: e.Engine, model: e.Model, needed: e.RanksNeeded, notReady: e.NotReady != "", asked: e.Requests.QueriedTokens, offered: e.Requests.OfferedTokens}
		rows[i].ranks, rows[i].loaded = ranksOf(s, e.Engine)
		if before == nil {
			continue
		}
		at := slices.IndexFunc(before.Engines, func(b daemon.EngineStatus) bool { return b.Engine == e.Engine })
		if at < 0 {
			continue
		}
		_, loaded := ranksOf(before, e.Engine)
		was := &before.Engines[at].Requests
		rows[i].asked, rows[i].offered = less(rows[i].asked, was.QueriedTokens), less(rows[i].offered, was.OfferedTokens)
		rows[i].loaded, rows[i].seconds = less(rows[i].loaded, loaded), s.UptimeS-before.UptimeS
	}
	return rows
}

// ranksOf counts an engine's ranks that can load, and the bytes that all of its ranks have loaded.
func ranksOf(s *daemon.Status, engine string) (ranks int, loaded uint64) {
	for i := range s.Ranks {
		if r := &s.Ranks[i]; r.Engine == engine {
			loaded += r.Transfers.LoadedBytes
			if r.Registered {
				ranks++
			}
		}
	}
	return ranks, loaded
}

func models(w io.Writer, s *daemon.Status, o order) {
	if len(s.Models) == 0 {
		return
	}
	list := slices.Clone(s.Models) // the largest first
	if o == byName {
		slices.SortStableFunc(list, func(a, b contents.Model) int { return cmp.Compare(a.Model, b.Model) })
	}
	fmt.Fprintf(w, "\nON DISK\tRECORDS\tNAMESPACES\tMODEL\n")
	for i := range list {
		m := &list[i]
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", statustext.Size(m.Bytes), m.Records, m.Namespaces, statustext.Clean(m.Model))
	}
}

// less is a difference of counters that may have begun again.
func less(now, before uint64) uint64 { return now - min(now, before) }

func per[N int64 | uint64](now, before N, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(now-min(now, before)) / seconds
}

func speed(bytesPerS float64) string { return statustext.Size(int64(bytesPerS)) + "/s" }

func upFor(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

// cleanLines makes a text that others gave fit for a terminal; it keeps its lines.
func cleanLines(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
