package replay

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	var text bytes.Buffer
	r.printTrace(&text)
	r.printPolicies(&text)
	r.printCurve(&text)
	if _, err := text.WriteTo(out); err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	return nil
}

func (r *Report) printTrace(w io.Writer) {
	t, s := &r.Trace, &r.Setup
	fmt.Fprintf(w, "Trace: %s %s in %s, %s prompt and %s output tokens.\n",
		count(t.Requests), plural(t.Requests, "request"), time.Duration(t.SpanSeconds*float64(time.Second)).Round(time.Second), amount(float64(t.InputTokens)), amount(float64(t.OutputTokens)))
	fmt.Fprintf(w, "%s blocks of %d tokens, %s of them distinct; %s conversations, %s.\n",
		count(t.Blocks), t.BlockTokens, count(t.DistinctBlocks), count(t.Conversations), t.ConversationSource)
	fmt.Fprintf(w, "A cache that never evicts: %s of the blocks and %s of the tokens are hits.\n\n", percent(r.InfiniteBlockHits), percent(r.InfiniteTokenHits))
	bytesPerBlock := float64(t.BlockTokens) * s.BytesPerToken
	fmt.Fprintf(w, "Setup: %d ranks on %d %s, %s blocks (%s) of GPU cache each, %s blocks (%s) of disk a node",
		s.Ranks, s.Nodes, plural(s.Nodes, "node"), count(s.GPUBlocks), bytesText(float64(s.GPUBlocks)*bytesPerBlock), count(s.DiskBlocks), bytesText(float64(s.DiskBlocks)*bytesPerBlock))
	if s.ObjectBlocks > 0 {
		fmt.Fprintf(w, ", %s blocks (%s) of object store", count(s.ObjectBlocks), bytesText(float64(s.ObjectBlocks)*bytesPerBlock))
	}
	fmt.Fprintf(w, ".\n%s tokens/s of prefill a rank, %s/s of disk a node, %s a token.\n\n",
		amount(s.PrefillTokensPerS), bytesText(s.DiskBytesPerS), bytesText(s.BytesPerToken))
}

func (r *Report) printPolicies(w io.Writer) {
	if len(r.Policies) == 0 {
		return
	}
	name := len("policy")
	for _, p := range r.Policies {
		name = max(name, len(p.Policy))
	}
	const row = "%-*s %7s %7s %7s %7s  %7s  %6s %6s %6s %6s %6s  %8s %8s  %8s %8s\n"
	fmt.Fprintf(w, "%-*s %-31s  %-7s  %-34s  %-17s  %s\n", name, "", "blocks found", "tokens", "estimated time to first token (s)", "max/mean", "CV")
	fmt.Fprintf(w, row, name, "policy", "gpu", "disk", "object", "all", "used", "mean", "p50", "p90", "p95", "p99", "computed", "requests", "computed", "requests")
	refused := 0
	for _, p := range r.Policies {
		fmt.Fprintf(w, row, name, p.Policy,
			percent(p.BlockHits.GPU), percent(p.BlockHits.Disk), percent(p.BlockHits.Object), percent(p.BlockHits.Total), percent(p.UsedTokens),
			seconds(p.TTFT.Mean), seconds(p.TTFT.P50), seconds(p.TTFT.P90), seconds(p.TTFT.P95), seconds(p.TTFT.P99),
			ratio(p.Computed.MaxOverMean), ratio(p.Requests.MaxOverMean), ratio(p.Computed.CV), ratio(p.Requests.CV))
		refused = max(refused, p.Refused)
	}
	fmt.Fprintln(w)
	r.printDisks(w)
	if refused > 0 {
		fmt.Fprintf(w, "%s %s refused: longer than a rank's GPU cache.\n\n", count(refused), plural(refused, "request"))
	}
}

// printDisks prints how much the disks read and write, from the policy with the least to the one with the most.
func (r *Report) printDisks(w io.Writer) {
	if r.Setup.DiskBlocks == 0 {
		return
	}
	span := func(of func(*Result) float64) (least, most float64) {
		for i, p := range r.Policies {
			v := 0.0
			if p.EndSeconds > 0 {
				v = of(p) / p.EndSeconds / float64(r.Setup.Nodes)
			}
			if most = max(most, v); i == 0 || v < least {
				least = v
			}
		}
		return least, most
	}
	readLeast, readMost := span(func(p *Result) float64 { return p.DiskReadBytes })
	writeLeast, writeMost := span(func(p *Result) float64 { return p.DiskWrittenBytes })
	fmt.Fprintf(w, "On average a disk reads %s/s and writes %s/s.\n", rangeText(readLeast, readMost), rangeText(writeLeast, writeMost))
	if _, dropped := span(func(p *Result) float64 { return p.DroppedSaveBytes }); dropped > 0 {
		fmt.Fprintf(w, "Saves of up to %s/s are dropped.\n", bytesText(dropped))
	}
	fmt.Fprintln(w)
}

// rangeText writes a range of sizes, or one if both ends read the same.
func rangeText(least, most float64) string {
	a, b := bytesText(least), bytesText(most)
	if a == b {
		return a
	}
	return a + " to " + b
}

func (r *Report) printCurve(w io.Writer) {
	fmt.Fprint(w, "Hit rate by size of one disk for all ranks (the least recently used block is evicted):\n")
	const row = "%10s  %9s  %12s  %12s\n"
	fmt.Fprintf(w, row, "blocks", "size", "blocks found", "tokens found")
	for _, p := range r.Curve {
		fmt.Fprintf(w, row, count(p.DiskBlocks), bytesText(p.DiskBytes), percent(p.BlockHits), percent(p.TokenHits))
	}
	fmt.Fprintln(w)
	if r.InfiniteTokenHits == 0 {
		fmt.Fprintln(w, "No prompt begins with blocks of an earlier one: a disk of any size finds nothing.")
		return
	}
	for _, s := range r.Sizes {
		fmt.Fprintf(w, "%.0f%% of the possible hits need %s %s, %s.\n", 100*s.Part, count(s.DiskBlocks), plural(s.DiskBlocks, "block"), bytesText(s.DiskBytes))
	}
	for _, p := range r.Policies {
		for _, at := range p.Curve {
			if at.DiskBlocks == r.Setup.DiskBlocks {
				fmt.Fprintf(w, "With %s, the %d disks of %s find %s of the tokens.\n", p.Policy, r.Setup.Nodes, bytesText(at.DiskBytes), percent(at.TokenHits))
			}
		}
	}
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

func percent(part float64) string { return fmt.Sprintf("%.2f%%", 100*part) }

func ratio(v float64) string { return fmt.Sprintf("%.3f", v) }

func seconds(s float64) string {
	if s >= 100 {
		return fmt.Sprintf("%.0f", s)
	}
	return fmt.Sprintf("%.3g", s)
}

func count(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", count(n/1000), n%1000)
}

// scaled returns a number in thousands, millions and so on, and their letter.
func scaled(v float64) (number, letter string) {
	for _, u := range [...]struct {
		of     float64
		letter string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.of {
			return threeDigits(v / u.of), u.letter
		}
	}
	return threeDigits(v), ""
}

func amount(v float64) string {
	number, letter := scaled(v)
	return strings.TrimSpace(number + " " + letter)
}

// bytesText writes a size in the units disks are sold in.
func bytesText(v float64) string {
	number, letter := scaled(v)
	return number + " " + letter + "B"
}

// threeDigits writes at least three digits, and never an exponent for the numbers of scaled.
func threeDigits(v float64) string {
	if v >= 99.5 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// Short is mean / 95th percentile with three digits each, for tables in documents.
func (t Times) Short() string { return short(t.Mean) + " / " + short(t.P95) }

// short writes seconds with three digits.
func short(s float64) string {
	switch {
	case s >= 99.95:
		return fmt.Sprintf("%.0f", s)
	case s >= 9.995:
		return fmt.Sprintf("%.1f", s)
	case s >= 0.9995:
		return fmt.Sprintf("%.2f", s)
	}
	return strings.TrimPrefix(fmt.Sprintf("%.3f", s), "0")
}
