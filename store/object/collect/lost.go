package collect

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// maxReports wait to be looked into. Others are dropped: a reader reports again what it finds again.
	maxReports = 1 << 16
	// lookObjects are looked at in one pass: a request each, or a whole object. Reports may be false, and
	// somebody's who wants them to cost.
	lookObjects = 100
)

// Report says what readers have found missing or damaged, as their lists tell.
func (c *Collector) Report(losses []format.Loss) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range losses {
		if _, known := c.reports[l.Object]; known || len(c.reports) < maxReports {
			c.reports[l.Object] = l.Cause
		}
	}
}

// removeLost looks at what was reported, and removes what is gone or damaged. What cannot be looked at is
// looked at again in the next pass.
func (c *Collector) removeLost(ctx context.Context) (failed error) {
	found := make(map[format.Cause][]format.ObjectID)
	for id, cause := range c.someReports() {
		why, err := c.inspect(ctx, id, cause)
		if err != nil {
			failed = fmt.Errorf("look at object %v, which was reported as %v: %w", id, cause, err)
			if ctx.Err() != nil {
				return failed
			}
			continue
		}
		if why != 0 {
			found[why] = append(found[why], id)
			continue
		}
		c.mu.Lock()
		c.stats.FalseReports++
		delete(c.reports, id)
		c.mu.Unlock()
	}
	for _, why := range []format.Cause{format.CauseLost, format.CauseDamaged} {
		if len(found[why]) == 0 {
			continue
		}
		if err := c.remove(ctx, found[why], why); err != nil {
			return err
		}
		c.mu.Lock()
		for _, id := range found[why] {
			delete(c.reports, id)
		}
		c.mu.Unlock()
	}
	return failed
}

// someReports returns reports of objects that are offered still, and forgets the others.
func (c *Collector) someReports() map[format.ObjectID]format.Cause {
	c.mu.Lock()
	defer c.mu.Unlock()
	some := make(map[format.ObjectID]format.Cause)
	for id, cause := range c.reports {
		if info, known := c.catalog.Object(id); !known || info.State == leaving {
			delete(c.reports, id)
		} else if some[id] = cause; len(some) == lookObjects {
			break
		}
	}
	return some
}

// inspect looks at the end of an object, and at all of it if it was reported as damaged. It returns what is
// wrong with it, 0 if nothing is.
func (c *Collector) inspect(ctx context.Context, id format.ObjectID, reported format.Cause) (format.Cause, error) {
	info, known := c.catalog.Object(id)
	if !known || info.Bytes < format.TrailerBytes {
		return 0, nil
	}
	body, err := c.client.Get(ctx, format.DataName(id).String(), info.Bytes-format.TrailerBytes, format.TrailerBytes)
	switch {
	case errors.Is(err, bucket.ErrMissing):
		return format.CauseLost, nil
	case errors.Is(err, bucket.ErrRange):
		return format.CauseDamaged, nil
	case err != nil:
		return 0, err
	}
	defer body.Close()
	b := make([]byte, format.TrailerBytes)
	if _, err := io.ReadFull(body, b); err != nil {
		return 0, err
	}
	if _, err := format.DecodeTrailer(b, id, info.Bytes); format.Damaged(err) || body.Bytes != info.Bytes {
		return format.CauseDamaged, nil
	}
	if reported == format.CauseDamaged && c.o.Verify != nil {
		return c.o.Verify(ctx, id, info.Bytes)
	}
	return 0, nil
}
