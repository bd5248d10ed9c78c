// Package statustext writes what a daemon says of itself for people.
package statustext

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon"
)

// Print writes the status for people; r may be nil.
func Print(out io.Writer, s *daemon.Status, r *Rates) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	printDaemon(w, s)
	printTiers(w, s)
	printGPUs(w, s)
	printWork(w, s, r)
	printEngines(w, s)
	printRanks(w, s)
	return w.Flush()
}

func printDaemon(w io.Writer, s *daemon.Status) {
	fmt.Fprintf(w, "%s\tpid %d, up %s, epoch %s\n", s.Version, s.PID, seconds(s.UptimeS), s.Epoch)
	fmt.Fprintf(w, "socket\t%s\n", s.Socket)
	fmt.Fprintf(w, "store\t%s: %d namespaces, %d segments\n", s.Store.Dir, s.Store.Namespaces, s.Store.Segments)
	if p := s.Publish; p != nil {
		fmt.Fprintf(w, "events\t%s: %d batches, %d subscribers, %d dropped\n", p.Endpoint, p.Batches, p.Subscribers, p.Dropped)
		if p.Error != "" {
			fmt.Fprintf(w, "\tnothing is published: %s\n", p.Error)
		}
	}
	if o := s.Opening; o != nil {
		fmt.Fprintf(w, "OPENING\t%s, for %s\n", o, seconds(o.ForS))
	}
	printSpace(w, s)
	if s.Health.OK {
		fmt.Fprintf(w, "health\tgood\n")
	}
	for i := range s.Health.Reasons {
		h := &s.Health.Reasons[i]
		fmt.Fprintf(w, "UNHEALTHY\t%s (%s, for %s)\n\t%s\n", h.Detail, h.Code, seconds(h.SinceS), h.Remedy)
	}
	for _, warning := range s.Store.Warnings {
		fmt.Fprintf(w, "warning\t%s\n", warning)
	}
}

func printSpace(w io.Writer, s *daemon.Status) {
	st := &s.Store
	if st.FileSystemBytes == 0 {
		return
	}
	limit := ""
	if st.EffectiveMaxBytes < st.MaxBytes {
		limit = ", not its cap of " + size(st.MaxBytes)
	}
	fmt.Fprintf(w, "space\t%s of %s free, %s to be left free; the store can reach %s%s\n",
		size(st.FreeBytes), size(st.FileSystemBytes), size(st.MinFreeBytes), size(st.EffectiveMaxBytes), limit)
}

func printTiers(w io.Writer, s *daemon.Status) {
	fmt.Fprintf(w, "\nTIER\tRECORDS\tUSED\tOF\tFULL\tHITS\tSPEED\n")
	for i := range s.Tiers {
		t := &s.Tiers[i]
		speed := "-"
		if t.LoadBytesPerS > 0 {
			speed = size(int64(t.LoadBytesPerS)) + "/s"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%d\t%s\n", t.Tier, t.Records, size(t.UsedBytes), size(t.ReachableBytes),
			percent(float64(t.UsedBytes), float64(t.ReachableBytes)), t.Hits, speed)
	}
	fmt.Fprintln(w)
}

// printGPUs prints the GPUs that engines have memory on, if there are any.
func printGPUs(w io.Writer, s *daemon.Status) {
	if len(s.GPUs) == 0 {
		return
	}
	fmt.Fprintf(w, "GPU\tUUID\tCUDA\tLOADED\tSAVED\tCOPIER\n")
	for i := range s.GPUs {
		g := &s.GPUs[i]
		copier := "runs"
		if !g.Running {
			copier = "ended: " + g.LastError
		}
		if g.Starts > 1 {
			copier += fmt.Sprintf(" (start %d)", g.Starts)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", g.Name, g.UUID, g.Driver, size(int64(g.LoadedBytes)), size(int64(g.SavedBytes)), copier)
	}
	fmt.Fprintln(w)
}

// printWork prints the work of all engines together, and what waits now.
func printWork(w io.Writer, s *daemon.Status, r *Rates) {
	q, t, st := &s.Queues, &s.Totals, &s.Store
	fmt.Fprintf(w, "hits\t%s of tokens offered (%d of %d), %s of blocks found (%d of %d)\n",
		percent(float64(t.Requests.OfferedTokens), float64(t.Requests.QueriedTokens)), t.Requests.OfferedTokens, t.Requests.QueriedTokens,
		percent(float64(st.HitBlocks), float64(st.LookupBlocks)), st.HitBlocks, st.LookupBlocks)
	fmt.Fprintf(w, "decisions\t%d hits offered in full, %d trimmed, %d refused: loading would take longer than prefill\n",
		t.Requests.DecisionsFull, t.Requests.DecisionsTrimmed, t.Requests.DecisionsRefused)
	fmt.Fprintf(w, "\tread latency %s, %s asked of the disk; offers to %d engines are cut now\n",
		latency(st.ReadSpeed.LatencyS), size(q.ReadQueuedBytes), cutting(s))
	fmt.Fprintf(w, "loads\t%s, %d blocks, %d failed\n", size(int64(t.Transfers.LoadedBytes)), t.Transfers.LoadedBlocks, t.Transfers.FailedBlocks)
	fmt.Fprintf(w, "saves\t%s, %d blocks, %d dropped\n", size(int64(t.Transfers.SavedBytes)), t.Transfers.SavedBlocks, t.Transfers.DroppedBlocks)
	fmt.Fprintf(w, "disk\t%d evicted, %d corrupt, %d read errors, %d timeouts, %d write errors\n",
		st.Evicted, st.Corrupt, st.ReadErrors, st.ReadTimeouts, st.WriteErrors)
	fmt.Fprintf(w, "queues\t%d loads (%d waiting for memory), %d reads waiting, %s of %s being read, %s to write, %d leases\n",
		q.LoadsInFlight, q.HostWaiting, q.QueuedReads, size(q.ReadInFlightBytes), size(q.ReadBudgetBytes), size(q.WriteInFlightBytes), q.Leases)
	if r == nil {
		return
	}
	hit := "-"
	if r.hit >= 0 {
		hit = percent(r.hit, 1)
	}
	fmt.Fprintf(w, "now\tload %s/s, save %s/s, disk read %s/s\n", size(int64(r.loadBytesPerS)), size(int64(r.saveBytesPerS)), size(int64(r.diskReadBytesPerS)))
	fmt.Fprintf(w, "\t%.0f tokens/s asked, %.0f tokens/s loaded, hit rate %s, %.1f blocks/s failed, %.1f dropped\n",
		r.queriedTokensPerS, r.loadTokensPerS, hit, r.failedBlocksPerS, r.droppedBlocksPerS)
}

// cutting counts the engines whose last hit was trimmed or refused.
func cutting(s *daemon.Status) int {
	n := 0
	for i := range s.Engines {
		if s.Engines[i].Requests.TierRefused {
			n++
		}
	}
	return n
}

// latency is a time to a record's last byte; it is not known until something was read.
func latency(s float64) string {
	if s <= 0 {
		return "-"
	}
	return time.Duration(s * float64(time.Second)).Round(10 * time.Microsecond).String()
}

func printEngines(w io.Writer, s *daemon.Status) {
	if len(s.Engines) > 0 {
		fmt.Fprintf(w, "\nENGINE\tPID\tMODEL\tRANKS\tREQUESTS\tQUERIED TOKENS\tOFFERED\tFULL\tTRIMMED\tREFUSED\tPREFILL\tFAILED LOADS\n")
	}
	for i := range s.Engines {
		e := &s.Engines[i]
		r := &e.Requests
		prefill := "-"
		if r.PrefillTokensPerS > 0 {
			prefill = fmt.Sprintf("%.0f tokens/s", r.PrefillTokensPerS)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d of %d\t%d\t%d\t%s\t%d\t%d\t%d\t%s\t%d\n", clean(e.Engine), e.PID, clean(e.Model),
			ranksOf(s, e.Engine), e.RanksNeeded, r.Requests, r.QueriedTokens, percent(float64(r.OfferedTokens), float64(r.QueriedTokens)),
			r.DecisionsFull, r.DecisionsTrimmed, r.DecisionsRefused, prefill, r.FailedLoads)
	}
	for i := range s.Engines {
		if e := &s.Engines[i]; e.NotReady != "" {
			fmt.Fprintf(w, "\nNOT READY\t%s: %s\n", clean(e.Engine), clean(e.NotReady))
		}
	}
}

// ranksOf counts the ranks of an engine that have registered their memory.
func ranksOf(s *daemon.Status, engine string) int {
	n := 0
	for i := range s.Ranks {
		if s.Ranks[i].Engine == engine && s.Ranks[i].Registered {
			n++
		}
	}
	return n
}

func printRanks(w io.Writer, s *daemon.Status) {
	if len(s.Ranks) > 0 {
		fmt.Fprintf(w, "\nRANK OF\tPID\tRANK\tBLOCK\tLOADED\tFAILED\tSAVED\tDROPPED\tLOADING\n")
	}
	for i := range s.Ranks {
		r := &s.Ranks[i]
		t := &r.Transfers
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%d blocks\t%s\t%d blocks\t%d\n", clean(r.Engine), r.PID, r.Rank, sizes(r.BlockBytes),
			size(int64(t.LoadedBytes)), t.FailedBlocks, size(int64(t.SavedBytes)), t.DroppedBlocks, t.LoadsInFlight)
	}
}

// clean makes a name that an engine gave fit for a terminal.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
}

// sizes are the bytes of a block, by layer group.
func sizes(list []int) string {
	if len(list) == 0 {
		return "-"
	}
	text := make([]string, len(list))
	for i, n := range list {
		text[i] = size(int64(n))
	}
	return strings.Join(text, "+")
}

func size(n int64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return config.Bytes(n).String()
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

func percent(part, whole float64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*part/whole)
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}
