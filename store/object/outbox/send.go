package outbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// smallCost is more than a use, a loss or a namespace takes in a list.
	smallCost = 32
	// mostInList leaves room for the header of a list and its sections.
	mostInList = format.MaxInBytes - 4096
)

// cost is what an object takes in a list, with its namespace.
func cost(o *format.Object) int64 { return o.ListBytes() + smallCost }

// Flush puts all that is to be told now. It returns once the lists are in the bucket; the log has them later.
func (x *Outbox) Flush(ctx context.Context) error {
	if !x.ready() {
		return ErrUnknownBucket
	}
	_, err := x.send(ctx, true)
	return err
}

// send makes lists of what there is, and puts all that were not put. It returns how many it put.
func (x *Outbox) send(ctx context.Context, uses bool) (n int, err error) {
	select {
	case x.turn <- struct{}{}:
		defer func() { <-x.turn }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	var used []format.Use
	if uses && x.first() == nil { // else they wait where their memory is bounded
		used = x.o.Uses()
	}
	for x.make(&used) {
	}
	for {
		l := x.first()
		if l == nil {
			return n, nil
		}
		if err := x.put(ctx, l); err != nil {
			return n, err
		}
		n++
	}
}

// make makes a list of what there is. It reports whether it did.
func (x *Outbox) make(used *[]format.Use) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.objects)+len(x.losses)+len(*used) == 0 || x.bucket == (format.BucketID{}) {
		return false
	}
	l := &format.List{Bucket: x.bucket, Writer: x.writer}
	room, took := int64(mostInList), int64(0)
	take := func(n int, bytes int64) int { return min(n, int((room-took)/bytes)) }
	i := 0
	for ; i < len(x.objects) && took+cost(&x.objects[i]) <= room; i++ {
		took += cost(&x.objects[i])
	}
	l.Objects, x.objects = x.objects[:i:i], x.objects[i:]
	i = take(len(x.losses), smallCost)
	took += int64(i) * smallCost
	l.Lost, x.losses = x.losses[:i:i], x.losses[i:]
	x.pending -= took
	i = take(len(*used), smallCost)
	l.Used, *used = (*used)[:i:i], (*used)[i:]
	x.sequence++
	l.Name = format.InName(x.writer, x.sequence)
	data, err := l.Encode(x.o.Ring)
	if err != nil { // it would fail again
		x.stats.Dropped += uint64(len(l.Objects) + len(l.Lost))
		x.o.Logger.Error("a list for the bucket cannot be encoded; what it tells is dropped", slog.Any("error", err))
		return true
	}
	x.lists = append(x.lists, &list{name: l.Name, data: data})
	x.kept += int64(len(data))
	return true
}

// first is the first list that was not put, nil if there is none.
func (x *Outbox) first() *list {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.lists {
		if l.put.IsZero() {
			return l
		}
	}
	return nil
}

// put puts a list. If another one has its name, two processes have the same writer id: it takes another.
func (x *Outbox) put(ctx context.Context, l *list) error {
	name := l.name.String()
	_, err := x.o.Client.Put(ctx, name, bytes.NewReader(l.data), int64(len(l.data)), bucket.Condition{Absent: true})
	if errors.Is(err, bucket.ErrCondition) {
		var ours bool
		if ours, err = x.ours(ctx, l); err == nil && !ours {
			return x.rename(l)
		}
	}
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	x.stats.Lists++
	if l.put.IsZero() {
		l.put = now
	} else {
		x.stats.Again++
	}
	l.checked = now
	return nil
}

// ours reports whether what has the name of a list is that list: an earlier attempt to put it may have been
// carried out. If it is gone by now it has been merged, and it was ours.
func (x *Outbox) ours(ctx context.Context, l *list) (bool, error) {
	body, err := x.o.Client.Get(ctx, l.name.String(), 0, 0)
	if errors.Is(err, bucket.ErrMissing) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer body.Close()
	if body.Length != int64(len(l.data)) {
		return false, nil
	}
	b := make([]byte, body.Length)
	if _, err := io.ReadFull(body, b); err != nil {
		return false, err
	}
	return bytes.Equal(b, l.data), nil
}

// rename gives a list the name of another writer, and has it put under that.
func (x *Outbox) rename(l *list) error {
	x.Collided(l.name.Writer)
	x.mu.Lock()
	defer x.mu.Unlock()
	d, err := format.DecodeList(bytes.Clone(l.data), l.name, x.bucket, x.o.Ring)
	if err != nil {
		return err
	}
	x.sequence++
	d.Name, d.Writer = format.InName(x.writer, x.sequence), x.writer
	data, err := d.Encode(x.o.Ring)
	if err != nil {
		return err
	}
	x.kept += int64(len(data) - len(l.data))
	l.name, l.data, l.put = d.Name, data, time.Time{}
	return nil
}

// check puts lists again that have waited for long, and are gone.
func (x *Outbox) check(ctx context.Context) error {
	select {
	case x.turn <- struct{}{}:
		defer func() { <-x.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, l := range x.overdue() {
		body, err := x.o.Client.Get(ctx, l.name.String(), 0, 1)
		switch {
		case errors.Is(err, bucket.ErrMissing):
			err = x.put(ctx, l)
		case err == nil:
			_ = body.Close()
			x.seen(l)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *Outbox) seen(l *list) {
	x.mu.Lock()
	defer x.mu.Unlock()
	l.checked = time.Now()
}

// overdue are the lists that the log should have by now.
func (x *Outbox) overdue() (all []*list) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.lists {
		if !l.put.IsZero() && l.logged.IsZero() && time.Since(l.checked) >= againAfter {
			all = append(all, l)
		}
	}
	return all
}
