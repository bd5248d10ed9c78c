package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

const (
	// progressInterval is how often a bar is drawn at most.
	progressInterval = 100 * time.Millisecond
	// lineInterval is how often a line is written where there is no terminal.
	lineInterval = 10 * time.Second
)

// progress is a bar on a terminal, and a line every few seconds elsewhere.
type progress struct {
	out      io.Writer
	what     string
	bar      *progressbar.ProgressBar
	terminal bool
	line     time.Time // when the last one was written, or it began
}

func newProgress(out io.Writer, what string) *progress {
	f, ok := out.(*os.File)
	return &progress{out: out, what: what, terminal: ok && term.IsTerminal(int(f.Fd())), line: time.Now()}
}

func (p *progress) set(done, total int64) {
	if total <= 0 {
		return
	}
	if !p.terminal {
		if now := time.Now(); now.Sub(p.line) >= lineInterval {
			p.line = now
			fmt.Fprintf(p.out, "%s: %d of %d\n", p.what, min(done, total), total)
		}
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(p.out), progressbar.OptionSetDescription(p.what),
			progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(progressInterval))
	}
	p.bar.ChangeMax64(total)
	_ = p.bar.Set64(min(done, total))
}

// finish takes the bar off the screen.
func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
