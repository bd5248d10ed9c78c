package campaign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/fault"
	"github.com/kvconn/kvconn/store/disk"
)

// Trial damages one file of a store that is down, starts it and looks at everything.
type Trial struct {
	Cell Cell
	// Seed says where the damage is.
	Seed uint64
}

// String names the trial so that it can be run again.
func (t Trial) String() string {
	return fmt.Sprintf("%v, %s, %v, seed %d", t.Cell.State, t.Cell.Kind, t.Cell.Fault, t.Seed)
}

// MinKept is the share of the intact records that has to be there after the start.
const MinKept = 0.98

// Outcome is what a trial found.
type Outcome struct {
	Trial Trial
	// Damage says what was done to which file.
	Damage string
	// Started is false if the store did not open.
	Started bool
	// WrongBytes is the number of reads that brought other bytes than were saved.
	WrongBytes int
	// Intact records had their own bytes left alone; Kept of them were there.
	Intact, Kept int
	// Warnings are those of the start.
	Warnings []string
	// Failures are the promises that were broken; none is good.
	Failures []string
	// Took is the time of the trial.
	Took time.Duration

	dir string
}

// Share is the share of the intact records that was kept.
func (o *Outcome) Share() float64 {
	if o.Intact == 0 {
		return 1
	}
	return float64(o.Kept) / float64(o.Intact)
}

// Fail notes a promise that was broken.
func (o *Outcome) Fail(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), o.dir, "STORE")
	o.Failures = append(o.Failures, strings.ReplaceAll(text, "\n", " / "))
}

// Run does the trial in dir, which it makes and removes.
func (t Trial) Run(o *Original, dir string) (Outcome, error) {
	began := time.Now()
	a, err := t.Prepare(o, dir)
	if err == nil {
		a.Look(o.cap)
	}
	if a.out.Started && rand.New(rand.NewPCG(t.Seed, 2)).IntN(4) == 0 {
		a.again()
	}
	a.out.Took = time.Since(began)
	return *a.out, errors.Join(err, os.RemoveAll(dir))
}

// Prepare makes the damaged store in dir without starting it.
func (t Trial) Prepare(o *Original, dir string) (*Attempt, error) {
	s := &o.states[t.Cell.State]
	a := &Attempt{o: o, s: s, dir: dir, injector: fault.NewInjector(nil), out: &Outcome{Trial: t, dir: dir}}
	if err := copyTree(dir, s.dir); err != nil {
		return a, err
	}
	d, err := s.inflict(dir, t.Cell, rand.New(rand.NewPCG(t.Seed, 1)))
	if err != nil {
		return a, err
	}
	script, err := fault.Parse(d.script)
	if err != nil {
		return a, err
	}
	a.d, a.out.Damage, a.intact = d, d.path+": "+d.what, s.intact(dir, d)
	a.injector = fault.NewInjector(script)
	a.injector.On()
	return a, nil
}

// Attempt is a trial under way.
type Attempt struct {
	o        *Original
	s        *snapshot
	d        damage
	dir      string
	cap      int64
	injector *fault.Injector
	out      *Outcome
	intact   []Record
}

// Outcome is what was found so far.
func (a *Attempt) Outcome() *Outcome { return a.out }

// Script goes below the store: the files that cannot be read.
func (a *Attempt) Script() string { return a.d.script }

// Look starts the damaged store under a cap, reads everything, and saves.
func (a *Attempt) Look(limit int64) {
	out := a.out
	a.cap = limit
	run, err := open(a.dir, limits{cap: limit}, a.injector, &a.o.contents)
	if err != nil {
		out.Fail("start: %v", err)
		return
	}
	out.Started = true
	if err := run.openNamespaces(); err != nil {
		out.Fail("after the start: %v", err)
	} else {
		a.check("after the start", run.checkBytes)
		a.readAll(run)
		a.saveSome(run)
		a.check("after saves", run.checkBytes)
	}
	out.Warnings = run.log.start()
	a.check("stop", run.close)
	a.check("after the stop", func() error {
		n, err := physicalBytes(a.dir)
		if err == nil {
			err = limits{cap: a.cap}.check(n)
		}
		return err
	})
}

func (a *Attempt) check(when string, what func() error) {
	if err := what(); err != nil {
		a.out.Fail("%s: %v", when, err)
	}
}

// readAll reads every record that was ever saved and counts what is there.
func (a *Attempt) readAll(run *subject) {
	out := a.out
	if err := run.rebuilt(); err != nil {
		out.Fail("%v", err)
	}
	there := run.present(a.intact)
	run.log.opened()
	out.Intact, out.Kept = len(a.intact), a.count(run, there)
	a.count(run, without(a.s.saved, there))
	if out.Share() < MinKept {
		out.Fail("%d of %d intact records are there", out.Kept, out.Intact)
	}
}

// count reads records and returns how many came.
func (a *Attempt) count(run *subject, records []Record) (came int) {
	errs, err := run.read(records)
	for _, e := range errs {
		if e == nil {
			came++
		}
	}
	if errors.Is(err, ErrWrongBytes) {
		a.out.WrongBytes++
	}
	if err != nil {
		a.out.Fail("%v", err)
	}
	return came
}

func without(all, gone []Record) []Record {
	set := make(map[Record]bool, len(gone))
	for _, r := range gone {
		set[r] = true
	}
	var out []Record
	for _, r := range all {
		if !set[r] {
			out = append(out, r)
		}
	}
	return out
}

// freshChain is the number of the chains that are saved after the damage.
const freshChain = 1 << 20

// saveSome saves records of both sizes, which must succeed, and reads them again.
func (a *Attempt) saveSome(run *subject) {
	for z := range sizes {
		records := Chain(z, freshChain, chainLength)
		if err := run.saveAll(records); err != nil {
			a.out.Fail("save of %v records: %v", z, err)
			continue
		}
		errs, err := run.read(records)
		if err != nil {
			a.out.Fail("%v", err)
		}
		// If reads of a segment fail, records saved into it cannot be read either.
		if err := first(errs); err != nil && a.d.script == "" {
			a.out.Fail("read of what was saved: %v", err)
		}
	}
	if err := run.sync(); err != nil {
		a.out.Fail("sync: %v", err)
	}
}

// again starts the store once more without a fault, and checks it.
func (a *Attempt) again() {
	a.injector.Off()
	run, err := open(a.dir, limits{cap: a.cap}, a.injector, &a.o.contents)
	if err != nil {
		a.out.Fail("second start: %v", err)
		return
	}
	if err := run.openNamespaces(); err != nil {
		a.out.Fail("second start: %v", err)
	} else {
		a.count(run, a.s.saved)
		a.check("second start", run.checkBytes)
	}
	a.check("second stop", run.close)
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	report, err := disk.Fsck(ctx, a.dir, disk.FsckOptions{Store: storeOptions(a.dir, 0, new(warnings))})
	if err != nil || len(report.Failed) > 0 {
		a.out.Fail("fsck: %s, %v", strings.Join(report.Failed, "; "), err)
	}
}
