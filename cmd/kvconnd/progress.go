package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progressInterval is how often a bar is drawn at most.
const progressInterval = 100 * time.Millisecond

// progress is a bar on a terminal, and nothing elsewhere.
type progress struct {
	out  io.Writer
	what string
	bar  *progressbar.ProgressBar
	show bool
}

func newProgress(out io.Writer, what string) *progress {
	f, ok := out.(*os.File)
	return &progress{out: out, what: what, show: ok && term.IsTerminal(int(f.Fd()))}
}

// set shows that done of total is done.
func (p *progress) set(done, total int64) {
	if !p.show || total <= 0 {
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
