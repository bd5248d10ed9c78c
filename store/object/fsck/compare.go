package fsck

import (
	"context"
	"fmt"

	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/format"
)

// task is something to read: a list by its name, or a data object.
type task struct {
	name  string
	id    format.ObjectID
	bytes int64 // as the lists say
	as    status
}

// status is what the comparison made of a data object.
type status uint8

const (
	asPresent  status = iota // to be verified
	asUnlisted               // an orphan, if it is still there and whole
	asMissing                // in the lists, and not in the bucket when it was listed
)

// compare compares what is there with what the lists say, and returns what is to be read.
func (c *check) compare() (tasks []task) {
	for id, l := range c.listed {
		info, known := c.o.Catalog.Object(id)
		bytes, waits := c.waiting[id]
		switch {
		case known && info.State == catalog.StateLeaving:
			c.report.Leaving++
			continue
		case known:
			c.report.Present++
			bytes = info.Bytes
		case waits:
			c.report.Waiting++
		case l.young:
			c.report.Young++
			continue
		default:
			tasks = append(tasks, task{id: id, bytes: l.bytes, as: asUnlisted})
			continue
		}
		if l.bytes != bytes {
			err := fmt.Errorf("%d bytes, the lists say %d", l.bytes, bytes)
			c.found(format.DataName(id).String(), WrongSize, err)
			c.lose(id, format.CauseDamaged)
		} else if c.o.Payload {
			tasks = append(tasks, task{id: id, bytes: bytes, as: asPresent})
		}
	}
	missing := func(id format.ObjectID, bytes int64) {
		if _, there := c.listed[id]; !there && bytes > 0 {
			tasks = append(tasks, task{id: id, bytes: bytes, as: asMissing})
		}
	}
	c.o.Catalog.Objects(func(i catalog.Info) bool {
		if i.State != catalog.StateLeaving {
			missing(i.ID, i.Bytes)
		}
		return true
	})
	for id, bytes := range c.waiting {
		if _, known := c.o.Catalog.Object(id); !known {
			missing(id, bytes)
		}
	}
	return tasks
}

// look reads a data object.
func (c *check) look(ctx context.Context, t task) {
	name := format.DataName(t.id).String()
	switch t.as {
	case asUnlisted:
		c.lookAtOrphan(ctx, t, name)
	case asPresent:
		c.settle(ctx, t, name, c.verify(ctx, t))
	case asMissing: // unless it came after the bucket was listed
		_, err := c.o.Verifier.Tail(ctx, t.id, t.bytes)
		if err == nil {
			c.count(func(r *Report) { r.Present++; r.Objects++; r.Bytes += t.bytes })
		}
		c.settle(ctx, t, name, err)
	}
}

// verify verifies all of an object.
func (c *check) verify(ctx context.Context, t task) error {
	o, err := c.o.Verifier.Tail(ctx, t.id, t.bytes)
	if err != nil {
		return err
	}
	return c.verifyRecords(ctx, o)
}

func (c *check) verifyRecords(ctx context.Context, o *format.Object) error {
	records, bytes, err := c.o.Verifier.Records(ctx, o)
	c.count(func(r *Report) { r.Records += int64(records); r.RecordBytes += bytes })
	return err
}

// settle notes what is wrong with an object that the lists have, and reports it to the steward.
func (c *check) settle(ctx context.Context, t task, name string, err error) {
	switch {
	case err == nil || ctx.Err() != nil:
		return
	case VerdictOf(err) == Missing:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.missing = append(c.missing, t)
		return
	}
	switch c.judge(name, err) {
	case Damaged, WrongSize, Foreign:
		c.lose(t.id, format.CauseDamaged)
	}
}

// settleMissing notes what is missing, unless it was removed while the check ran.
func (c *check) settleMissing(ctx context.Context) error {
	if len(c.missing) == 0 {
		return nil
	}
	if err := c.o.CatchUp(ctx); err != nil {
		return fmt.Errorf("follow the log: %w", err)
	}
	for _, t := range c.missing {
		info, known := c.o.Catalog.Object(t.id)
		if _, waits := c.waiting[t.id]; known && info.State == catalog.StateLeaving || !known && !waits {
			continue
		}
		c.found(format.DataName(t.id).String(), Missing, nil)
		c.lose(t.id, format.CauseLost)
	}
	return nil
}

// lookAtOrphan adopts an object in no list, if it is whole.
func (c *check) lookAtOrphan(ctx context.Context, t task, name string) {
	o, err := c.o.Verifier.Tail(ctx, t.id, t.bytes)
	if err == nil && c.o.Payload {
		err = c.verifyRecords(ctx, o)
	}
	switch {
	case ctx.Err() != nil || VerdictOf(err) == Missing: // deleted meanwhile
	case err != nil:
		c.judge(name, err)
	default:
		c.found(name, Orphan, nil)
		if c.o.Outbox != nil {
			c.count(func(*Report) { c.repairs = true })
			c.o.Outbox.Add(*o)
			c.repaired("%s: its %d records are offered again", name, len(o.Records))
		}
	}
}

// lose reports an object to the steward, which looks for itself, and removes it.
func (c *check) lose(id format.ObjectID, why format.Cause) {
	if c.o.Outbox == nil {
		return
	}
	c.count(func(*Report) { c.repairs = true })
	c.o.Outbox.Lose(id, why)
	c.repaired("%s: reported as %v to the steward", format.DataName(id), why)
}
