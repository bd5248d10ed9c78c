package campaign

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// Table counts outcomes by kind of damage. It is safe for concurrent use.
type Table struct {
	mu    sync.Mutex
	rows  map[Cell]*row
	fails []Outcome
	trial int
	took  time.Duration
}

type row struct {
	trials, notStarted, wrong, failed int
	least                             float64
	fewest, most                      int // warnings
	silent                            int // something was lost and nothing was said
}

// Add counts an outcome.
func (t *Table) Add(o *Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == nil {
		t.rows = make(map[Cell]*row)
	}
	r := t.rows[o.Trial.Cell]
	if r == nil {
		r = &row{least: 1, fewest: len(o.Warnings)}
		t.rows[o.Trial.Cell] = r
	}
	t.trial++
	t.took += o.Took
	r.trials++
	r.wrong += o.WrongBytes
	if len(o.Failures) > 0 {
		r.failed++
		t.fails = append(t.fails, *o)
	}
	if !o.Started {
		r.notStarted++
		return
	}
	r.least = min(r.least, o.Share())
	r.fewest, r.most = min(r.fewest, len(o.Warnings)), max(r.most, len(o.Warnings))
	if o.Kept < o.Intact && len(o.Warnings) == 0 {
		r.silent++
	}
}

// Failed are the outcomes with a broken promise.
func (t *Table) Failed() []Outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.fails)
}

// Trials is how many there were.
func (t *Table) Trials() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.trial
}

// WriteTo writes the table as Markdown, with a sum at its end.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var text []byte
	line := func(format string, args ...any) { text = fmt.Appendf(text, format+"\n", args...) }
	line("| file | damage | state | trials | not started | wrong bytes | least kept | warnings | lost in silence | failed |")
	line("|---|---|---|---:|---:|---:|---:|---:|---:|---:|")
	cells := make([]Cell, 0, len(t.rows))
	for c := range t.rows {
		cells = append(cells, c)
	}
	slices.SortFunc(cells, func(a, b Cell) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Fault, b.Fault), cmp.Compare(a.State, b.State))
	})
	sum := row{least: 1}
	for _, c := range cells {
		r := t.rows[c]
		line("| `%s` | %v | %v | %s |", c.Kind, c.Fault, c.State, r)
		sum.trials, sum.notStarted, sum.wrong = sum.trials+r.trials, sum.notStarted+r.notStarted, sum.wrong+r.wrong
		sum.silent, sum.failed = sum.silent+r.silent, sum.failed+r.failed
		sum.least, sum.fewest, sum.most = min(sum.least, r.least), min(sum.fewest, r.fewest), max(sum.most, r.most)
	}
	line("| all | | | %s |", &sum)
	n, err := w.Write(text)
	return int64(n), err
}

func (r *row) String() string {
	kept := "–"
	if r.notStarted < r.trials {
		kept = fmt.Sprintf("%.1f %%", 100*r.least)
	}
	return fmt.Sprintf("%d | %d | %d | %s | %d–%d | %d | %d", r.trials, r.notStarted, r.wrong, kept, r.fewest, r.most, r.silent, r.failed)
}
