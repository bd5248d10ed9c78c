// Package fsck checks a bucket of the object tier: it lists what is there, compares that with what the lists
// say, reads as much as it is asked to, and repairs what can be repaired. It runs beside daemons, and changes
// nothing by itself: repairs are lines in an ordinary list, and a new head.
package fsck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/format"
)

// Catalog is what the lists say of data objects.
type Catalog interface {
	Object(id format.ObjectID) (catalog.Info, bool)
	Objects(f func(catalog.Info) bool)
}

// Outbox takes repairs to the steward: it is a writer's list.
type Outbox interface {
	Add(o format.Object)
	Lose(id format.ObjectID, why format.Cause)
	Flush(ctx context.Context) error
}

// Options say what is checked, and how. Client, Verifier, Catalog and CatchUp must be set.
type Options struct {
	Client bucket.Client
	// Verifier reads data objects.
	Verifier *Verifier
	// Catalog has all that the log says when CatchUp has returned.
	Catalog Catalog
	CatchUp func(context.Context) error
	// Payload also reads and verifies every record.
	Payload bool
	// Outbox takes repairs. Default: nothing is repaired.
	Outbox Outbox
	// RemakeHead makes the file head again from the parts that there are, as the steward. Default: a head
	// that is damaged stays.
	RemakeHead func(context.Context) error
	// Parallel is how many objects are read at one time. Default 8.
	Parallel int
	// OrphanAge is how old an object in no list must be, so that its writer is not about to tell of it.
	// Default 1 h: younger ones are counted.
	OrphanAge time.Duration
	// Progress, if not nil, is called from time to time with the objects checked, from one goroutine at a
	// time.
	Progress func(done, total int64)
}

// progressEvery is how often Progress is called.
const progressEvery = 200 * time.Millisecond

// Check checks a bucket. An error says that it could not be done; what is wrong with the bucket is in the
// report.
func Check(ctx context.Context, o Options) (Report, error) {
	o.Parallel, o.OrphanAge = cmp.Or(o.Parallel, 8), cmp.Or(o.OrphanAge, time.Hour)
	c := &check{o: o, waiting: make(map[format.ObjectID]int64), listed: make(map[format.ObjectID]listed)}
	c.report.Lists = make(map[string]int64)
	if err := c.run(ctx); err != nil {
		return c.report, err
	}
	return c.report, nil
}

// listed is a data object as the bucket lists it.
type listed struct {
	bytes int64
	young bool
}

type check struct {
	o       Options
	listed  map[format.ObjectID]listed
	waiting map[format.ObjectID]int64 // bytes of objects in lists that were not merged
	lists   []bucket.Meta             // of all kinds
	logs    []uint64                  // numbers of log objects
	missing []task                    // guarded by mu

	mu          sync.Mutex // guards what follows
	report      Report
	done, total int64
	told        time.Time
	headBad     bool
	repairs     bool // the outbox has something
}

// run does all, in a sequence that takes nothing for missing or an orphan that came or went meanwhile: first
// the objects, then the lists, then the log to its end.
func (c *check) run(ctx context.Context) error {
	if err := c.checkFiles(ctx); err != nil {
		return err
	}
	head, headErr := c.readHead(ctx)
	if err := c.listAll(ctx); err != nil {
		return err
	}
	c.checkHead(&head, headErr)
	if err := c.checkLists(ctx); err != nil {
		return err
	}
	if err := c.o.CatchUp(ctx); err != nil {
		return fmt.Errorf("follow the log: %w", err)
	}
	if err := c.each(ctx, c.compare(), c.o.Parallel, c.look); err != nil {
		return err
	}
	if err := c.settleMissing(ctx); err != nil {
		return err
	}
	return c.repair(ctx)
}

// each calls f for all tasks, some at a time.
func (c *check) each(ctx context.Context, tasks []task, parallel int, f func(context.Context, task)) error {
	c.total += int64(len(tasks))
	next := make(chan task)
	var all sync.WaitGroup
	for range min(parallel, len(tasks)) {
		all.Go(func() {
			for t := range next {
				f(ctx, t)
				c.progress()
			}
		})
	}
	for i := 0; i < len(tasks) && ctx.Err() == nil; i++ {
		select {
		case next <- tasks[i]:
		case <-ctx.Done():
		}
	}
	close(next)
	all.Wait()
	return context.Cause(ctx)
}

func (c *check) progress() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done++
	if now := time.Now(); c.o.Progress != nil && (c.done == c.total || now.Sub(c.told) >= progressEvery) {
		c.told = now
		c.o.Progress(c.done, c.total)
	}
}

// repair sends what was found out.
func (c *check) repair(ctx context.Context) error {
	if c.repairs {
		if err := c.o.Outbox.Flush(ctx); err != nil {
			return fmt.Errorf("write the list of repairs: %w", err)
		}
	}
	if c.headBad && c.o.RemakeHead != nil {
		if err := c.o.RemakeHead(ctx); err != nil {
			c.failed(format.HeadFile, fmt.Errorf("make it again: %w", err))
		} else {
			c.repaired("%s was made again from the parts", format.HeadFile)
		}
	}
	return nil
}

// found notes a problem.
func (c *check) found(name string, what Verdict, detail error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.report.Problems == nil {
		c.report.Problems = make(map[Verdict]int64)
	}
	c.report.Problems[what]++
	if len(c.report.Details) < maxDetails {
		p := Problem{Name: name, What: what}
		if detail != nil {
			p.Detail = detail.Error()
		}
		c.report.Details = append(c.report.Details, p)
	}
}

func (c *check) repaired(text string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.report.Repaired) < maxDetails {
		c.report.Repaired = append(c.report.Repaired, fmt.Sprintf(text, args...))
	}
}

// failed notes what could not be read.
func (c *check) failed(name string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Unread++
	if len(c.report.Failed) < maxDetails {
		c.report.Failed = append(c.report.Failed, fmt.Sprintf("%s: %v", name, err))
	}
}

func (c *check) count(f func(*Report)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.report)
}

// judge notes what an error of reading or decoding says of an object. It returns "" where it could not be
// read.
func (c *check) judge(name string, err error) Verdict {
	what := VerdictOf(err)
	switch {
	case what != "":
		c.found(name, what, err)
	case !errors.Is(err, context.Canceled):
		c.failed(name, err)
	}
	return what
}
