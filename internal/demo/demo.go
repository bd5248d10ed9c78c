package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/engine"
)

// Options configure [Run].
type Options struct {
	// Executable is kvconnd itself. It is run as the daemon (`serve`) and as the engine
	// (`demo-engine`).
	Executable string
	// Keep is a directory in which the store is left; empty for a temporary one.
	Keep string
	// Progress receives a line for each thing that is begun.
	Progress io.Writer
}

// Row is one turn of a conversation, served without the cache and, after a restart of
// both daemon and engine, with it.
type Row struct {
	Name         string `json:"name"`
	PromptTokens int    `json:"prompt_tokens"`
	// CachedTokens are not computed in the second run: GPUTokens were in the engine's
	// own prefix cache by then, DiskTokens came from disk.
	CachedTokens int `json:"cached_tokens"`
	GPUTokens    int `json:"gpu_tokens"`
	DiskTokens   int `json:"disk_tokens"`
	// TTFTColdS and TTFTCachedS are the times to the first token, in seconds.
	TTFTColdS   float64 `json:"ttft_cold_s"`
	TTFTCachedS float64 `json:"ttft_cached_s"`
	Identical   bool    `json:"identical"`
}

// Corruption is the result of a flipped bit in a stored record.
type Corruption struct {
	// Detected says that the daemon noticed, Identical that the engine's answer was
	// right all the same; RecomputedTokens is what that took.
	Detected         bool `json:"detected"`
	Identical        bool `json:"identical"`
	RecomputedTokens int  `json:"recomputed_tokens"`
}

// Report is the demo's result.
type Report struct {
	Rows       []Row      `json:"rows"`
	Corruption Corruption `json:"corruption"`
	// Store is where the store was left, if it was.
	Store string `json:"store,omitempty"`
}

// OK says that every answer was identical and the flipped bit was noticed.
func (r *Report) OK() bool {
	different := slices.ContainsFunc(r.Rows, func(row Row) bool { return !row.Identical })
	return !different && len(r.Rows) > 0 && r.Corruption.Detected && r.Corruption.Identical
}

// turn is a prompt with the answer that the engine gave without the cache.
type turn struct {
	name   string
	prompt []uint32
	answer []uint32
	ttftS  float64
}

type runner struct {
	o      *Options
	dir    string
	socket string
	// serve are more flags of the daemon, environ variables of all children.
	serve, environ []string
	turns          []turn
	report         Report
}

// Run runs the demo.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	work, err := os.MkdirTemp("", "kvconn-demo-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	r := &runner{o: &o, dir: filepath.Join(work, "store"), socket: filepath.Join(work, "kvconnd.sock")}
	if o.Keep != "" {
		if r.dir, err = emptyDir(o.Keep); err != nil {
			return nil, err
		}
		r.report.Store = r.dir
	}
	for _, part := range []struct {
		what          string
		prefixCaching bool
		do            func(ctx context.Context, d *daemonProcess, e *engineProcess) error
	}{
		{"1/3 first run: nothing is cached, everything is computed and saved", false, r.cold},
		{"2/3 second run: daemon and engine were stopped and started again", true, r.cached},
		{"3/3 third run: a bit was flipped on disk meanwhile", false, r.corrupted},
	} {
		r.say("%s", part.what)
		if err := r.withProcesses(ctx, part.prefixCaching, part.do); ctx.Err() != nil {
			return nil, errors.New("interrupted") // the children only repeat it
		} else if err != nil {
			return nil, err
		}
		if part.prefixCaching {
			if err := flipBit(r.dir, blockKey(r.turns[0].prompt, blockSize, corruptBlock)); err != nil {
				return nil, err
			}
		}
	}
	return &r.report, nil
}

// corruptBlock is the block of the first prompt whose record gets the flipped bit: in
// the middle of the shared prefix, with good blocks before and after it.
const corruptBlock = 20

// emptyDir makes a directory for the store; one that holds something is refused, since
// the first run must find nothing cached.
func emptyDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("store directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return dir, nil
	case err != nil:
		return "", fmt.Errorf("store directory: %w", err)
	case len(entries) > 0:
		return "", fmt.Errorf("%s is not empty: the demo needs a fresh store", dir)
	}
	return dir, nil
}

func (o *Options) say(format string, args ...any) { fmt.Fprintf(o.Progress, format+"\n", args...) }

func (r *runner) say(format string, args ...any) { r.o.say(format, args...) }

// withProcesses starts daemon and engine, does something with them, and stops both.
func (r *runner) withProcesses(ctx context.Context, prefixCaching bool, do func(context.Context, *daemonProcess, *engineProcess) error) (err error) {
	d, err := r.startDaemon(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	e, err := r.startEngine(prefixCaching)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.stop()) }()
	// A signal ends the children, and with them every wait.
	defer context.AfterFunc(ctx, func() { _ = e.cmd.Process.Kill() })()
	return do(ctx, d, e)
}

// cold serves every turn without loading from the cache, and lets it save.
func (r *runner) cold(_ context.Context, _ *daemonProcess, e *engineProcess) error {
	system := engine.EncodeText(systemPrompt())
	for _, c := range conversations() {
		history := system
		for i, line := range c.turns {
			t := turn{name: fmt.Sprintf("%s, turn %d", c.name, i+1), prompt: turnTokens(history, line)}
			got, err := e.complete(prompt{ID: t.name, Tokens: t.prompt, MaxTokens: answerTokens, NoLoad: true})
			if err != nil {
				return err
			}
			t.answer, t.ttftS = got.Tokens, got.TTFTS
			r.say("    %-16s %5d tokens, first token after %.3f s", t.name, len(t.prompt), t.ttftS)
			history = append(append([]uint32(nil), t.prompt...), t.answer...)
			r.turns = append(r.turns, t)
		}
	}
	return nil
}

// cached serves the same turns from the cache.
func (r *runner) cached(_ context.Context, _ *daemonProcess, e *engineProcess) error {
	for _, t := range r.turns {
		got, err := e.complete(prompt{ID: t.name, Tokens: t.prompt, MaxTokens: answerTokens})
		if err != nil {
			return err
		}
		row := Row{
			Name: t.name, PromptTokens: len(t.prompt), CachedTokens: got.GPUTokens + got.DiskTokens,
			GPUTokens: got.GPUTokens, DiskTokens: got.DiskTokens,
			TTFTColdS: t.ttftS, TTFTCachedS: got.TTFTS, Identical: slices.Equal(got.Tokens, t.answer),
		}
		r.say("    %-16s %5d tokens, first token after %.3f s", t.name, row.PromptTokens, row.TTFTCachedS)
		r.report.Rows = append(r.report.Rows, row)
	}
	return nil
}

// corrupted serves the first turn from a store with a flipped bit.
func (r *runner) corrupted(ctx context.Context, d *daemonProcess, e *engineProcess) error {
	t := r.turns[0]
	got, err := e.complete(prompt{ID: t.name, Tokens: t.prompt, MaxTokens: answerTokens})
	if err != nil {
		return err
	}
	s, err := daemon.FetchStatus(ctx, d.http)
	if err != nil {
		return err
	}
	r.report.Corruption = Corruption{
		Detected: s.Store.Corrupt > 0, Identical: slices.Equal(got.Tokens, t.answer), RecomputedTokens: got.Recomputed,
	}
	return nil
}

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "conversation\tprompt tokens\tfrom gpu\tfrom disk\tfirst token without\twith cache\tsooner\tidentical\t")
	for i := range r.Rows {
		row := &r.Rows[i]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.3f s\t%.3f s\t%.1fx\t%s\t\n", row.Name, row.PromptTokens, row.GPUTokens, row.DiskTokens,
			row.TTFTColdS, row.TTFTCachedS, row.TTFTColdS/max(row.TTFTCachedS, 1e-9), yesNo(row.Identical))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	c := &r.Corruption
	_, err := fmt.Fprintf(out, "\nA bit flipped on disk: detected %s, %d tokens recomputed, identical %s.\n",
		yesNo(c.Detected), c.RecomputedTokens, yesNo(c.Identical))
	if err == nil && r.Store != "" {
		_, err = fmt.Fprintf(out, "The store is in %s.\n", r.Store)
	}
	return err
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}
