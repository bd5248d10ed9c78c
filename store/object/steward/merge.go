package steward

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

const (
	// pageNames lists are asked for, merged and deleted at a time; listsAtOnce are read at once.
	pageNames   = 1000
	listsAtOnce = 8
	// mostInLog leaves room for the header and the sources of a log object.
	mostInLog = format.MaxLogBytes - 64<<10
	// foreignFor is how long lists of another bucket are left: their writers may not know yet.
	foreignFor = time.Hour
	// attempts of putting a log object, each after another node's.
	attempts = 8
	// mostSkipped bounds the names of lists that cannot be merged, which are not read again.
	mostSkipped = 1 << 16
)

// in is a list of a writer that was read.
type in struct {
	name format.Name
	follow.Stored
}

// merge merges what writers have told into the log, and looks at what they report. It returns how many lists there
// were.
func (t *term) merge(ctx context.Context) (n int, err error) {
	if n, err = t.mergeAll(ctx); err != nil {
		return n, err
	}
	return n, t.examine(ctx)
}

// mergeAll merges what writers have told into the log. It returns how many lists there were.
func (t *term) mergeAll(ctx context.Context) (n int, err error) {
	for after := ""; ; {
		if err := t.guard(); err != nil {
			return n, err
		}
		metas, err := t.s.o.Client.List(ctx, format.InPrefix, after, pageNames)
		if err != nil {
			return n, err
		}
		merged, err := t.mergePage(ctx, metas)
		n += merged
		if err != nil {
			return n, err
		}
		if len(metas) < pageNames {
			return n, nil
		}
		after = metas[len(metas)-1].Name
	}
}

// mergePage merges some lists, as many as fit into a log object at a time.
func (t *term) mergePage(ctx context.Context, metas []bucket.Meta) (n int, err error) {
	for len(metas) > 0 {
		i, bytes := 0, int64(0)
		for ; i < len(metas) && (i == 0 || bytes+metas[i].Bytes <= mostInLog); i++ {
			bytes += min(metas[i].Bytes, format.MaxInBytes)
		}
		lists, err := t.readLists(ctx, metas[:i])
		if err != nil {
			return n, err
		}
		metas = metas[i:]
		if len(lists) == 0 {
			continue
		}
		if err := t.mergeLists(ctx, lists); err != nil {
			return n, err
		}
		n += len(lists)
	}
	return n, nil
}

// readLists reads lists of writers. Lists that cannot be merged are counted, and deleted if nobody can
// use them.
func (t *term) readLists(ctx context.Context, metas []bucket.Meta) (lists []in, err error) {
	all := make([]in, len(metas))
	g, group := errgroup.WithContext(ctx)
	g.SetLimit(listsAtOnce)
	for i, m := range metas {
		name, err := format.ParseName(m.Name)
		if err != nil || name.Kind != format.KindIn || t.skipped[m.Name] == m.ETag && m.Now.Sub(m.Modified) <= foreignFor {
			continue
		}
		g.Go(func() error {
			s, err := follow.ReadList(group, t.s.o.Client, name, t.id, t.s.o.Ring)
			if err == nil && format.Damaged(s.Bad) { // perhaps on its way
				s, err = follow.ReadList(group, t.s.o.Client, name, t.id, t.s.o.Ring)
			}
			if errors.Is(err, bucket.ErrMissing) { // another steward has merged it
				return nil
			}
			if errors.Is(err, bucket.ErrArchived) { // not this one, but those of other writers
				s.Bad, err = err, nil
			}
			all[i] = in{name, s}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var useless []string
	for i, l := range all {
		switch {
		case l.List != nil:
			lists = append(lists, l)
		case l.Bad != nil && t.skip(metas[i], l.Bad):
			useless = append(useless, metas[i].Name)
		}
	}
	return lists, t.s.o.Client.Delete(ctx, useless)
}

// skip counts a list that cannot be merged. It reports whether it is of no use to anybody.
func (t *term) skip(m bucket.Meta, why error) (useless bool) {
	c := &t.s.counts
	again := t.skipped[m.Name] == m.ETag
	count := func(n interface{ Add(uint64) uint64 }) {
		if !again {
			n.Add(1)
		}
	}
	switch {
	case errors.Is(why, format.ErrNewer):
		count(&c.newer)
	case errors.Is(why, format.ErrForeign):
		count(&c.foreign)
		useless = m.Now.Sub(m.Modified) > foreignFor
	case errors.Is(why, format.ErrUnsealed), errors.Is(why, seal.ErrUnknownKey):
		count(&c.unsealed)
	case errors.Is(why, bucket.ErrArchived):
		count(&c.damaged)
	default:
		count(&c.damaged)
		useless = true // its writer puts it again
	}
	if !again {
		t.s.o.Logger.Warn("a writer's list in the bucket was not merged", slog.String("name", m.Name), slog.Any("error", why),
			slog.Bool("deleted", useless), slog.String("remedy", follow.Remedy(why)))
	}
	if len(t.skipped) >= mostSkipped {
		clear(t.skipped)
	}
	if useless { // the same bytes may come again, and be whole: they were damaged on their way to this node
		delete(t.skipped, m.Name)
	} else {
		t.skipped[m.Name] = m.ETag
	}
	return useless
}

// mergeLists puts lists into the log, as one object of it if that has room, and deletes them.
func (t *term) mergeLists(ctx context.Context, lists []in) error {
	d := newDigest()
	l := &format.List{}
	names := make([]string, 0, len(lists))
	for _, in := range lists {
		d.add(in.List)
		l.Sources = append(l.Sources, format.Source{Writer: in.name.Writer, Sequence: in.name.Number})
		names = append(names, in.name.String())
	}
	d.fill(l)
	switch err := t.publish(ctx, l); {
	case errors.Is(err, format.ErrTooLarge) && len(lists) > 1: // of too many namespaces
		half := len(lists) / 2
		if err := t.mergeLists(ctx, lists[:half]); err != nil {
			return err
		}
		return t.mergeLists(ctx, lists[half:])
	case err != nil:
		return err
	}
	for _, in := range lists {
		t.heard(in)
	}
	t.s.counts.merged.Add(uint64(len(lists)))
	return t.s.o.Client.Delete(ctx, names)
}

// heard notes who wrote a list, and what it says is lost.
func (t *term) heard(l in) {
	w, now := l.name.Writer, time.Now()
	if last, known := t.writers[w]; known && l.name.Number > last.sequence+1 {
		t.s.counts.gaps.Add(l.name.Number - last.sequence - 1)
	}
	t.writers[w] = writer{max(l.name.Number, t.writers[w].sequence), now}
	for _, loss := range l.List.Lost {
		if len(t.reports) < mostReports {
			t.reports[loss.Object] = loss.Cause
		}
	}
}

// interval is how long to wait between two merges while lists come.
func (t *term) interval() time.Duration {
	for w, last := range t.writers {
		if time.Since(last.heard) > remember {
			delete(t.writers, w)
		}
	}
	return min(max(time.Duration(len(t.writers))*perWriter, firstMerge), lastMerge)
}

// publish puts a list as the next object of the log.
func (t *term) publish(ctx context.Context, l *format.List) error {
	for range attempts {
		if err := t.guard(); err != nil {
			return err
		}
		if !t.s.o.Client.Conditional() { // or it would take the place of what is there
			if err := t.s.o.Follower.CatchUp(ctx); err != nil {
				return err
			}
		}
		done, err := t.tryPublish(ctx, l)
		if err != nil || done {
			return err
		}
	}
	return errLost // others write the log, and are faster
}

// tryPublish puts a list as the object of the log after the last one that is known here. It reports false if
// there is another.
func (t *term) tryPublish(ctx context.Context, l *format.List) (bool, error) {
	position, sum := t.s.o.Follower.Position()
	if sum == (format.Sum{}) && position > 0 {
		last, err := follow.ReadList(ctx, t.s.o.Client, format.LogName(position), t.id, t.s.o.Ring)
		if err != nil && !errors.Is(err, bucket.ErrMissing) {
			return false, err
		}
		sum = last.Sum
	}
	l.Name, l.Bucket, l.Writer, l.Previous = format.LogName(position+1), t.id, t.s.writer, sum
	data, err := l.Encode(t.s.o.Ring)
	if err != nil {
		return false, err
	}
	l.Sum = format.SumOf(data)
	if err := t.guard(); err != nil { // what came before may have taken long
		return false, err
	}
	err = t.put(ctx, l.Name, data, bucket.Condition{Absent: true})
	if errors.Is(err, bucket.ErrCondition) {
		return t.replace(ctx, l, data)
	}
	if err != nil {
		return false, err
	}
	return true, t.wrote(ctx, l, int64(len(data)))
}

// put puts an object of this term, with a time limit: what arrives later may meet another steward's work.
func (t *term) put(ctx context.Context, name format.Name, data []byte, c bucket.Condition) error {
	t.mu.Lock()
	left := holdFor - time.Since(t.renewed)
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	_, err := t.s.o.Client.Put(ctx, name.String(), bytes.NewReader(data), int64(len(data)), c)
	if err == nil && !t.s.o.Client.Conditional() && name.Kind == format.KindLog {
		if !sleep.For(ctx, readBack, nil) {
			return ctx.Err()
		}
		var b []byte
		b, _, err = follow.Read(ctx, t.s.o.Client, name.String(), name.Kind)
		if err == nil && !bytes.Equal(b, data) || errors.Is(err, bucket.ErrMissing) {
			err = bucket.ErrCondition
		}
	}
	return err
}

// replace deals with an object that is where a list was to be put: another steward's, or one that nobody can
// use.
func (t *term) replace(ctx context.Context, l *format.List, data []byte) (bool, error) {
	if err := t.s.o.Follower.CatchUp(ctx); err != nil {
		return false, err
	}
	if now, _ := t.s.o.Follower.Position(); now >= l.Name.Number {
		return false, t.confirm(ctx)
	}
	there, err := follow.ReadList(ctx, t.s.o.Client, l.Name, t.id, t.s.o.Ring)
	if errors.Is(err, bucket.ErrMissing) {
		return false, nil
	}
	if err != nil || !errors.Is(there.Bad, format.ErrForeign) && !format.Damaged(there.Bad) {
		return false, err
	}
	if err := t.put(ctx, l.Name, data, bucket.Condition{ETag: there.ETag}); err != nil {
		return false, err
	}
	return true, t.wrote(ctx, l, int64(len(data)))
}

// wrote notes that a list is the next object of the log.
func (t *term) wrote(ctx context.Context, l *format.List, size int64) error {
	t.s.counts.logs.Add(1)
	t.logBytes += size
	for i := range l.Objects {
		t.logRecords += uint64(len(l.Objects[i].Records))
	}
	if t.logSince.IsZero() {
		t.logSince = t.s.o.Now()
	}
	if t.s.o.Follower.Wrote(ctx, l) {
		return nil
	}
	return t.s.o.Follower.CatchUp(ctx)
}
