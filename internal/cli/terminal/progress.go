package terminal

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

// Progress is a bar on a terminal, and a line every few seconds elsewhere. It is not safe for concurrent use.
type Progress struct {
	out      io.Writer
	what     string
	bar      *progressbar.ProgressBar
	terminal bool
	line     time.Time // when the last one was written, or it began
}

// NewProgress shows on out how far what is done.
func NewProgress(out io.Writer, what string) *Progress {
	f, ok := out.(*os.File)
	return &Progress{out: out, what: what, terminal: ok && term.IsTerminal(int(f.Fd())), line: time.Now()}
}

// What is the text before the bar.
func (p *Progress) What() string { return p.what }

// Set shows that done of total is done; without a total it shows nothing.
func (p *Progress) Set(done, total int64) {
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

// Finish takes the bar off the screen.
func (p *Progress) Finish() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
