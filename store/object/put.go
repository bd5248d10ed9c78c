package object

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

// maxNames is how often an object is given another name because somebody has its own.
const maxNames = 3

// send writes an object and its list, and reports the writes.
func (t *Tier) send(l *link, p *packed) {
	t.writes.end(p.writes, writeError(t.sendObject(l, p)))
}

func (t *Tier) sendObject(l *link, p *packed) error {
	ctx, cancel := context.WithTimeout(t.ctx, t.o.PutTimeout)
	defer cancel()
	o, err := t.put(ctx, l, p)
	if err != nil {
		return fmt.Errorf("write %d records to the bucket: %w", len(p.writes), err)
	}
	l.lists.Add(*o)
	if err := l.lists.Flush(ctx); err != nil {
		return fmt.Errorf("write the list of %d records to the bucket: %w", len(p.writes), err)
	}
	t.catalog.Apply(&format.List{Name: format.InName(o.ID.Writer(), 0), Bucket: l.id, Objects: []format.Object{*o}})
	w := p.writes[0]
	t.probed.note(&store.ReadOp{Record: w.op.Record, Payload: w.op.Payload})
	return nil
}

// put writes an object, under another name if its own is taken.
func (t *Tier) put(ctx context.Context, l *link, p *packed) (*format.Object, error) {
	select {
	case t.writes.slots <- struct{}{}:
		defer func() { <-t.writes.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := t.describe(ctx, l, p.ns); err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		d, err := t.build(l, p, t.writer.next())
		if err != nil {
			return nil, err
		}
		_, err = t.bucket.Put(ctx, format.DataName(d.object.ID).String(), &d.body, d.body.bytes, bucket.Condition{Absent: true})
		if err == nil {
			return &d.object, nil
		}
		if !errors.Is(err, bucket.ErrCondition) || n == maxNames {
			return nil, err
		}
		t.o.Logger.Warn("another process writes with this node's name; this one takes another", "object", d.object.ID)
		t.writer.rename(d.object.ID)
	}
}
