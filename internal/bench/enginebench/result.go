package enginebench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Result is what [Run] measured. Times are in seconds.
type Result struct {
	Seed         uint64 `json:"seed"`
	API          string `json:"api"`
	Prompts      int    `json:"prompts"`
	OutputTokens int    `json:"output_tokens"`
	FillTokens   int    `json:"fill_tokens"`
	// Restarted says that something was done between the passes, such as a restart.
	Restarted bool     `json:"restarted,omitempty"`
	Engine    string   `json:"engine"`
	Compare   string   `json:"compare,omitempty"`
	Lengths   []Length `json:"lengths"`
}

// Length is the result for prompts of one length.
type Length struct {
	// Tokens is the length that was asked for.
	Tokens int     `json:"tokens"`
	Engine Figures `json:"engine"`
	// Compare is nil if one endpoint was asked.
	Compare *Figures `json:"compare,omitempty"`
	// ColdRatio and AgainRatio are the engine's times by those of the other endpoint, pair by pair; nil without one.
	ColdRatio  *Spread `json:"cold_ratio,omitempty"`
	AgainRatio *Spread `json:"again_ratio,omitempty"`
}

// Figures are of one endpoint.
type Figures struct {
	Model string `json:"model"`
	// PromptTokens is the mean length by the endpoint's own count, 0 if it does not say.
	PromptTokens float64 `json:"prompt_tokens"`
	// Cold and Again are times to the first token; Ratio is Again by Cold, prompt by prompt.
	Cold  Spread `json:"cold_s"`
	Again Spread `json:"again_s"`
	Ratio Spread `json:"again_by_cold"`
	// ColdTotal and AgainTotal are times to the end of the answer.
	ColdTotal  Spread `json:"cold_total_s"`
	AgainTotal Spread `json:"again_total_s"`
	// ColdCached and AgainCached are the parts of the prompts that the endpoint says were cached, 0 if it does not say.
	ColdCached  float64 `json:"cold_cached_ratio"`
	AgainCached float64 `json:"again_cached_ratio"`
}

// Spread are the least, the middle and the greatest of several values.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) Spread {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return Spread{Min: sorted[0], Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Max: sorted[n-1]}
}

func (b *bench) result() *Result {
	r := &Result{
		Seed: b.o.Seed, API: "completions", Prompts: b.o.Prompts, OutputTokens: b.o.OutputTokens, FillTokens: b.o.FillTokens,
		Engine: b.targets[0].base, Restarted: b.o.Between != nil,
	}
	if b.o.Chat {
		r.API = "chat"
	}
	if len(b.targets) > 1 {
		r.Compare = b.targets[1].base
	}
	for l, tokens := range b.o.Tokens {
		length := Length{Tokens: tokens, Engine: b.figures(0, l)}
		if len(b.targets) > 1 {
			other := b.figures(1, l)
			cold := spreadOf(b.pairs(l, func(s *sample) time.Duration { return s.cold.firstToken }))
			again := spreadOf(b.pairs(l, func(s *sample) time.Duration { return s.again.firstToken }))
			length.Compare, length.ColdRatio, length.AgainRatio = &other, &cold, &again
		}
		r.Lengths = append(r.Lengths, length)
	}
	return r
}

// each is a value of every prompt of one length at one endpoint.
func (b *bench) each(target, length int, value func(*sample) float64) (values []float64) {
	for n := range b.o.Prompts {
		values = append(values, value(b.samples[place{target, length, n}]))
	}
	return values
}

// pairs are the ratios of the first endpoint's times to the second's, each of prompts that were asked one after the other.
func (b *bench) pairs(length int, of func(*sample) time.Duration) (ratios []float64) {
	for n := range b.o.Prompts {
		ratios = append(ratios, ratio(of(b.samples[place{0, length, n}]), of(b.samples[place{1, length, n}])))
	}
	return ratios
}

func ratio(a, b time.Duration) float64 { return float64(a) / math.Max(float64(b), 1) }

func (b *bench) figures(target, length int) Figures {
	seconds := func(of func(*sample) time.Duration) Spread {
		return spreadOf(b.each(target, length, func(s *sample) float64 { return of(s).Seconds() }))
	}
	f := Figures{
		Model:      b.targets[target].model,
		Cold:       seconds(func(s *sample) time.Duration { return s.cold.firstToken }),
		Again:      seconds(func(s *sample) time.Duration { return s.again.firstToken }),
		Ratio:      spreadOf(b.each(target, length, func(s *sample) float64 { return ratio(s.again.firstToken, s.cold.firstToken) })),
		ColdTotal:  seconds(func(s *sample) time.Duration { return s.cold.total }),
		AgainTotal: seconds(func(s *sample) time.Duration { return s.again.total }),
	}
	var prompts, cold, again float64
	for n := range b.o.Prompts {
		s := b.samples[place{target, length, n}]
		prompts += float64(s.cold.promptTokens)
		cold += float64(s.cold.cachedTokens)
		again += float64(s.again.cachedTokens)
	}
	if f.PromptTokens = prompts / float64(b.o.Prompts); prompts > 0 {
		f.ColdCached, f.AgainCached = cold/prompts, again/prompts
	}
	return f
}

// Print writes the result for people.
func (r *Result) Print(out io.Writer) error {
	fmt.Fprintf(out, "time to the first token, %d prompts of each length, seed %d; medians, least and greatest in brackets\n", r.Prompts, r.Seed)
	if r.Restarted {
		fmt.Fprintln(out, "what --between names was done before prompts were asked again")
	}
	line := func(name string, f *Figures) {
		tokens := "unknown"
		if f.PromptTokens > 0 {
			tokens = fmt.Sprintf("%.0f", f.PromptTokens)
		}
		fmt.Fprintf(out, "  %-8s %8s tokens  cold %s  again %s  again/cold %s%s\n",
			name, tokens, ms(f.Cold), ms(f.Again), times(f.Ratio), cached(f))
	}
	for i := range r.Lengths {
		l := &r.Lengths[i]
		fmt.Fprintf(out, "%d tokens\n", l.Tokens)
		line("engine", &l.Engine)
		if l.Compare != nil {
			line("compare", l.Compare)
			fmt.Fprintf(out, "  engine/compare, pair by pair: cold %s, again %s\n", times(*l.ColdRatio), times(*l.AgainRatio))
		}
	}
	_, err := fmt.Fprintf(out, "engine: %s\n", r.Engine)
	if r.Compare != "" {
		_, err = fmt.Fprintf(out, "compare: %s\n", r.Compare)
	}
	return err
}

func ms(s Spread) string {
	return fmt.Sprintf("%.1f ms (%.1f to %.1f)", 1e3*s.Median, 1e3*s.Min, 1e3*s.Max)
}

func times(s Spread) string { return fmt.Sprintf("%.3f (%.3f to %.3f)", s.Median, s.Min, s.Max) }

func cached(f *Figures) string {
	if f.AgainCached == 0 && f.ColdCached == 0 {
		return ""
	}
	return fmt.Sprintf("  cached by its own count: cold %.0f%%, again %.0f%%", 100*f.ColdCached, 100*f.AgainCached)
}
