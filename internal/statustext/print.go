// Package statustext writes what a daemon says of itself for people.
package statustext

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/daemon"
)

// Print writes the status for people; r may be nil.
func Print(out io.Writer, s *daemon.Status, r *Rates) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	printDaemon(w, s)
	printTiers(w, s)
	printModels(w, s)
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
		limit = ", not its cap of " + Size(st.MaxBytes)
	}
	fmt.Fprintf(w, "space\t%s of %s free, %s to be left free;\n\tthe store can reach %s%s\n",
		Size(st.FreeBytes), Size(st.FileSystemBytes), Size(st.MinFreeBytes), Size(st.EffectiveMaxBytes), limit)
}

func printTiers(w io.Writer, s *daemon.Status) {
	fmt.Fprintf(w, "\nTIER\tRECORDS\tUSED\tOF\tFULL\tHITS\tSPEED\n")
	for i := range s.Tiers {
		t := &s.Tiers[i]
		speed := "-"
		if t.LoadBytesPerS > 0 {
			speed = Size(int64(t.LoadBytesPerS)) + "/s"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%d\t%s\n", t.Tier, t.Records, Size(t.UsedBytes), Size(t.ReachableBytes),
			Percent(float64(t.UsedBytes), float64(t.ReachableBytes)), t.Hits, speed)
	}
	fmt.Fprintln(w)
}

// printModels prints what the disk holds of each model.
func printModels(w io.Writer, s *daemon.Status) {
	if len(s.Models) == 0 {
		return
	}
	fmt.Fprintf(w, "MODEL ON DISK\tPAYLOADS\tRECORDS\tNAMESPACES\n")
	for i := range s.Models {
		m := &s.Models[i]
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\n", Clean(m.Model), Size(m.Bytes), m.Records, m.Namespaces)
	}
	fmt.Fprintln(w)
}

// printGPUs prints the GPUs that engines have memory on, if there are any.
func printGPUs(w io.Writer, s *daemon.Status) {
	if len(s.GPUs) == 0 {
		return
	}
	fmt.Fprintf(w, "GPU\tMODEL\tCUDA\tLOADED\tSAVED\tCOPIER\n")
	for i := range s.GPUs {
		g := &s.GPUs[i]
		copier := "runs"
		if !g.Running {
			copier = "ended"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", shortGPU(g.UUID), gpuModel(g.Name), g.Driver,
			Size(int64(g.LoadedBytes)), Size(int64(g.SavedBytes)), copier)
	}
	for i := range s.GPUs {
		printGPU(w, &s.GPUs[i])
	}
	fmt.Fprintln(w)
}

// printGPU says what is special about one GPU, in lines that are no part of the table.
func printGPU(w io.Writer, g *gpu.DeviceStatus) {
	id := shortGPU(g.UUID)
	if !g.Running {
		wrapped(w, fmt.Sprintf("%s: the copier has ended: %s", id, Clean(g.LastError)))
	}
	if g.Starts > 1 {
		fmt.Fprintf(w, "%s: the copier was started %d times\n", id, g.Starts)
	}
	if g.PinError != "" {
		wrapped(w, fmt.Sprintf("%s: only %s of the host tier are locked: %s", id, Size(g.PinnedBytes), Clean(g.PinError)))
	}
	if g.KernelError != "" {
		wrapped(w, fmt.Sprintf("%s: no copy kernels: %s", id, Clean(g.KernelError)))
		return
	}
	for i := range g.Copies {
		if c := &g.Copies[i]; c.By == "kernel" {
			fmt.Fprintf(w, "%s: %ss by a kernel from %d runs of %s on:\n  %s/s, where batches have %s/s\n", id, c.Direction, c.Runs,
				Size(int64(c.RunBytes)), Size(int64(c.KernelBytesPerS)), Size(int64(c.BatchBytesPerS)))
		}
	}
}

// shortGPU is a GPU's id with the first part of its UUID.
func shortGPU(id string) string {
	const kind = len("GPU-") // or MIG-
	if len(id) <= kind {
		return Clean(id)
	}
	return Clean(id[:kind]) + Short(id[kind:])
}

// gpuModel is what fits a column of a GPU's name.
func gpuModel(name string) string {
	const most = 26
	name = strings.TrimPrefix(Clean(name), "NVIDIA ")
	if letters := []rune(name); len(letters) > most {
		name = string(letters[:most-1]) + "…"
	}
	return name
}

// wrapped writes a text in lines that fit a terminal; those after the first are indented.
func wrapped(w io.Writer, text string) {
	const columns = 80
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= columns:
			line += " " + word
		default:
			fmt.Fprintln(w, line)
			line = "  " + word
		}
	}
	fmt.Fprintln(w, line)
}

// printWork prints the work of all engines together, and what waits now.
func printWork(w io.Writer, s *daemon.Status, r *Rates) {
	q, t, st := &s.Queues, &s.Totals, &s.Store
	fmt.Fprintf(w, "hits\t%s of tokens that engines lacked (%d of %d)\n\t%d tokens they had themselves\n",
		Percent(float64(t.Requests.OfferedTokens), float64(t.Requests.QueriedTokens)), t.Requests.OfferedTokens, t.Requests.QueriedTokens,
		t.Requests.EngineTokens)
	fmt.Fprintf(w, "decisions\t%d hits offered in full, %d trimmed, %d refused as slower than prefill\n",
		t.Requests.DecisionsFull, t.Requests.DecisionsTrimmed, t.Requests.DecisionsRefused)
	fmt.Fprintf(w, "\tread latency %s, queue %s; offers limited for %d engines\n",
		latency(st.ReadSpeed.LatencyS), Size(q.ReadQueuedBytes), cutting(s))
	fmt.Fprintf(w, "loads\t%s, %d blocks, %d failed\n", Size(int64(t.Transfers.LoadedBytes)), t.Transfers.LoadedBlocks, t.Transfers.FailedBlocks)
	fmt.Fprintf(w, "saves\t%s, %d blocks, %d dropped\n", Size(int64(t.Transfers.SavedBytes)), t.Transfers.SavedBlocks, t.Transfers.DroppedBlocks)
	fmt.Fprintf(w, "disk\t%d evicted, %d corrupt, %d read errors, %d timeouts, %d write errors\n",
		st.Evicted, st.Corrupt, st.ReadErrors, st.ReadTimeouts, st.WriteErrors)
	fmt.Fprintf(w, "queues\t%d loads (%d waiting for memory), %d reads waiting,\n\t%s of %s being read, %s to write, %d leases\n",
		q.LoadsInFlight, q.HostWaiting, q.QueuedReads, Size(q.ReadInFlightBytes), Size(q.ReadBudgetBytes), Size(q.WriteInFlightBytes), q.Leases)
	if r == nil {
		return
	}
	hit := "-"
	if r.Hit >= 0 {
		hit = Percent(r.Hit, 1)
	}
	fmt.Fprintf(w, "now\tload %s/s, save %s/s, disk read %s/s\n", Size(int64(r.LoadBytesPerS)), Size(int64(r.SaveBytesPerS)), Size(int64(r.DiskReadBytesPerS)))
	fmt.Fprintf(w, "\t%.0f tokens/s asked, %.0f tokens/s loaded, hit rate %s,\n\t%.1f blocks/s failed, %.1f dropped\n",
		r.QueriedTokensPerS, r.LoadTokensPerS, hit, r.FailedBlocksPerS, r.DroppedBlocksPerS)
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
		fmt.Fprintf(w, "\nENGINE\tPID\tMODEL\tRANKS\tREQS\tASKED\tHITS\tPREFILL\tFAILED\n")
	}
	for i := range s.Engines {
		e := &s.Engines[i]
		r := &e.Requests
		prefill := "-"
		if r.PrefillTokensPerS > 0 {
			prefill = fmt.Sprintf("%.0f/s", r.PrefillTokensPerS)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%d\t%d\t%s\t%s\t%d\n", Short(e.Engine), process(e.PID), Clean(e.Model),
			ranksOf(s, e.Engine), e.RanksNeeded, r.Requests, r.QueriedTokens, Percent(float64(r.OfferedTokens), float64(r.QueriedTokens)),
			prefill, r.FailedLoads)
	}
	for i := range s.Engines {
		if e := &s.Engines[i]; e.NotReady != "" {
			fmt.Fprintf(w, "\nNOT READY\t%s: %s\n", Clean(e.Engine), Clean(e.NotReady))
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
		fmt.Fprintf(w, "\nRANK OF\tRANK\tBLOCK\tLOADED\tFAILED\tSAVED\tDROPPED\tNOW\n")
	}
	for i := range s.Ranks {
		r := &s.Ranks[i]
		t := &r.Transfers
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%s\t%d\t%d\n", Short(r.Engine), r.Rank, sizes(r.BlockBytes),
			Size(int64(t.LoadedBytes)), t.FailedBlocks, Size(int64(t.SavedBytes)), t.DroppedBlocks, t.LoadsInFlight)
	}
}

// Short is an engine's name for a table: of a UUID, such as vLLM makes, the first part is enough.
func Short(engine string) string {
	const uuid, first = 36, 8
	if len(engine) >= uuid && uuidForm(engine[:uuid]) {
		engine = engine[:first] + engine[uuid:]
	}
	return Clean(engine)
}

func uuidForm(s string) bool {
	for i, c := range s {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (c == '-') || !dash && !strings.ContainsRune("0123456789abcdefABCDEF", c) {
			return false
		}
	}
	return true
}

// process is a process's number. The kernel gives none for one that lives in another PID namespace, as in a container.
func process(pid int) string {
	if pid == 0 {
		return "-"
	}
	return strconv.Itoa(pid)
}

// Clean makes a name that an engine gave fit for a terminal.
func Clean(name string) string {
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
		text[i] = Size(int64(n))
	}
	return strings.Join(text, "+")
}

// Size is a number of bytes in the unit that suits it.
func Size(n int64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%dB", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

// Percent is a part of a whole in percent, or - of nothing.
func Percent(part, whole float64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*part/whole)
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}
