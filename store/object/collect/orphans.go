package collect

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// listObjects are listed at one time, maxOrphans are found in one look: 16 MB of memory.
	listObjects = 10_000
	maxOrphans  = 1 << 20
)

// Orphans deletes data objects that are old and in no list, and returns how many.
//
// The sequence keeps a steward that slept for days from deleting what it has not heard of: it lists the
// objects, then merges all lists and follows the log to its end, then asks whether it is the steward still.
// What is in no list after that was not put into one for a day. Objects of a writer with a list that could
// not be merged stay: a newer program may have written them.
func (c *Collector) Orphans(ctx context.Context) (deleted int, err error) {
	c.pass.Lock()
	defer c.pass.Unlock()
	if _, err := c.now(); err != nil {
		return 0, err
	}
	if err := c.o.Whole(); err != nil { // to list all objects would be for nothing
		return 0, fmt.Errorf("look for orphans: %w", err)
	}
	found, err := c.unlisted(ctx)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	if err := c.merge(ctx, nil, nil); err != nil {
		return 0, fmt.Errorf("merge before orphans are deleted: %w", err)
	}
	spared, err := c.waiting(ctx)
	if err != nil {
		return 0, err
	}
	orphans := found[:0]
	for _, id := range found {
		if _, known := c.catalog.Object(id); !known && !spared[id.Writer()] {
			orphans = append(orphans, id)
		}
	}
	if err := errors.Join(c.steward.Holds(ctx), c.o.Whole()); err != nil {
		return 0, fmt.Errorf("before orphans are deleted: %w", err)
	}
	if err := c.delete(ctx, orphans); err != nil {
		return 0, err
	}
	c.count(func(s *Stats) { s.Orphans += uint64(len(orphans)) })
	if len(orphans) > 0 {
		c.o.Logger.Info("object tier: deleted objects that were in no list", "objects", len(orphans))
	}
	return len(orphans), nil
}

// unlisted lists data objects that are old enough and not known.
func (c *Collector) unlisted(ctx context.Context) (found []format.ObjectID, err error) {
	var foreign uint64
	s := c.catalog.Stats()
	c.progress(0, s.Objects+s.LeavingObjects)
	for after, more := "", true; more && len(found) < maxOrphans; {
		page, err := c.client.List(ctx, format.DataPrefix, after, listObjects)
		if err != nil {
			return nil, fmt.Errorf("list data objects: %w", err)
		}
		for i := range page {
			m := &page[i]
			name, err := format.ParseName(m.Name)
			if err != nil || name.Kind != format.KindData {
				foreign++
				continue
			}
			if _, known := c.catalog.Object(name.Object); known || m.Modified.IsZero() || m.Now.Sub(m.Modified) < c.o.OrphanAge {
				continue
			}
			found = append(found, name.Object)
		}
		c.progress(int64(len(page)), 0)
		if more = len(page) == listObjects; more {
			after = page[len(page)-1].Name
		}
	}
	c.count(func(s *Stats) { s.Foreign = foreign })
	return found, nil
}

// waiting returns the writers of the lists that are there.
func (c *Collector) waiting(ctx context.Context) (map[format.WriterID]bool, error) {
	writers := make(map[format.WriterID]bool)
	for after, more := "", true; more; {
		page, err := c.client.List(ctx, format.InPrefix, after, listObjects)
		if err != nil {
			return nil, fmt.Errorf("list what was not merged: %w", err)
		}
		for i := range page {
			if name, err := format.ParseName(page[i].Name); err == nil && name.Kind == format.KindIn {
				writers[name.Writer] = true
			}
		}
		if more = len(page) == listObjects; more {
			after = page[len(page)-1].Name
		}
	}
	return writers, nil
}
