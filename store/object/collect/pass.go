package collect

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvconn/kvconn/store/object/format"
)

// Pass removes what nobody used for long, and what is beyond the cap, and deletes what was removed long enough
// ago.
func (c *Collector) Pass(ctx context.Context) error {
	c.pass.Lock()
	defer c.pass.Unlock()
	if _, err := c.now(); err != nil {
		return err
	}
	if err := c.removeOld(ctx); err != nil {
		return err
	}
	if err := c.removeCold(ctx); err != nil {
		return err
	}
	return c.deleteRemoved(ctx)
}

// removeOld removes what was not used for long.
func (c *Collector) removeOld(ctx context.Context) error {
	if c.o.MaxAge == 0 {
		return nil
	}
	now, err := c.now()
	if err != nil {
		return err
	}
	return c.remove(ctx, c.catalog.Unused(before(now, c.o.MaxAge)), format.CauseAge)
}

// before is a time before another.
func before(now format.Seconds, d time.Duration) format.Seconds {
	return now - min(now, format.Seconds(d/time.Second))
}

// removeCold removes what is beyond the cap.
func (c *Collector) removeCold(ctx context.Context) error {
	bytes := c.catalog.Stats().Bytes
	if c.o.MaxBytes == 0 || bytes < percent(c.o.MaxBytes, startPercent) {
		return nil
	}
	return c.remove(ctx, c.catalog.Coldest(bytes-percent(c.o.MaxBytes, stopPercent)), format.CauseCap)
}

func percent(n, p int64) int64 { return n/100*p + n%100*p/100 }

// remove has objects offered no more.
func (c *Collector) remove(ctx context.Context, ids []format.ObjectID, why format.Cause) error {
	c.progress(0, int64(len(ids)))
	for part := range slices.Chunk(ids, mergeObjects) {
		now, err := c.now()
		if err != nil {
			return err
		}
		removed := make([]format.Removal, len(part))
		for i, id := range part {
			removed[i] = format.Removal{Object: id, When: now, Cause: why}
		}
		if err := c.merge(ctx, removed, nil); err != nil {
			return fmt.Errorf("remove %d objects (%v): %w", len(part), why, err)
		}
		c.progress(int64(len(part)), 0)
		c.count(func(s *Stats) {
			if why == format.CauseCap {
				s.RemovedCap += uint64(len(part))
			} else {
				s.RemovedAge += uint64(len(part))
			}
		})
	}
	return nil
}

// deleteRemoved deletes the bytes of what was removed before the grace, and says so in the log.
func (c *Collector) deleteRemoved(ctx context.Context) error {
	now, err := c.now()
	if err != nil {
		return err
	}
	for part := range slices.Chunk(c.catalog.Removed(before(now, c.o.Grace)), mergeObjects) {
		if err := c.delete(ctx, part); err != nil {
			return err
		}
		if err := c.merge(ctx, nil, part); err != nil {
			return fmt.Errorf("forget %d deleted objects: %w", len(part), err)
		}
		c.count(func(s *Stats) { s.Deleted += uint64(len(part)) })
	}
	return nil
}

// delete deletes objects' bytes.
func (c *Collector) delete(ctx context.Context, ids []format.ObjectID) error {
	c.progress(0, int64(len(ids)))
	names := make([]string, 0, min(len(ids), deleteObjects))
	for part := range slices.Chunk(ids, deleteObjects) {
		names = names[:0]
		for _, id := range part {
			names = append(names, format.DataName(id).String())
		}
		if err := c.client.Delete(ctx, names); err != nil {
			return fmt.Errorf("delete %d objects: %w", len(names), err)
		}
		c.progress(int64(len(part)), 0)
	}
	return nil
}

func (c *Collector) merge(ctx context.Context, removed []format.Removal, deleted []format.ObjectID) error {
	ctx, cancel := context.WithTimeout(ctx, mergeTime)
	defer cancel()
	return c.steward.Merge(ctx, removed, deleted)
}

func (c *Collector) count(f func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.stats)
}
