package steward

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
)

// state is what a steward knows of the bucket, in one term.
type state struct {
	head     format.Head
	headETag string // of what has the head's name, "" if there is nothing
	headRead time.Time

	// Of the log after the head: records, bytes, and when the first object of it was written.
	logRecords uint64
	logBytes   int64
	logSince   time.Time
	// A log that could not be folded is tried again at foldAgain. blocked is the last list that was in the way.
	foldAgain time.Time
	blocked   format.Name

	writers map[format.WriterID]writer
	skipped map[string]string // lists that cannot be merged, and their ETags
	reports map[format.ObjectID]format.Cause
	useless map[format.Name]bool // parts that cannot be read, or merged with the next
	swept   time.Time
}

// writer is what was heard of a writer.
type writer struct {
	sequence uint64
	heard    time.Time
}

// begin learns the state of the bucket at the start of a term. A head that was lost is made again first: a
// log that began at 1 again would hide from others what is in the parts.
func (t *term) begin(ctx context.Context) error {
	id, ok := t.s.o.Follower.Bucket()
	if !ok {
		return errLost
	}
	t.id = id
	t.state = state{
		writers: make(map[format.WriterID]writer), skipped: make(map[string]string),
		reports: make(map[format.ObjectID]format.Cause), useless: make(map[format.Name]bool),
	}
	if err := t.readHead(ctx); err != nil {
		return err
	}
	t.s.o.Follower.Suspect()
	if err := t.s.o.Follower.CatchUp(ctx); err != nil {
		return err
	}
	if err := t.s.admitted(); err != nil {
		return err
	}
	return t.measure(ctx)
}

// measure looks how much log there is after the head.
func (t *term) measure(ctx context.Context) error {
	t.logRecords, t.logBytes, t.logSince = 0, 0, time.Time{}
	metas, err := t.s.o.Client.List(ctx, format.LogPrefix, format.LogName(t.head.Last).String(), maxFold)
	if err != nil {
		return err
	}
	for _, m := range metas {
		t.logBytes += m.Bytes
		if t.logSince.IsZero() || m.Modified.Before(t.logSince) {
			t.logSince = m.Modified
		}
	}
	t.logRecords = uint64(t.logBytes) / recordBytes
	return nil
}

// keepHead reads the head now and then, and makes it again if it was lost.
func (t *term) keepHead(ctx context.Context) error {
	if time.Since(t.headRead) < headEvery {
		return nil
	}
	return t.readHead(ctx)
}

// readHead reads the head. If it was lost it is made again from the names of parts.
func (t *term) readHead(ctx context.Context) error {
	b, meta, err := follow.Read(ctx, t.s.o.Client, format.HeadFile, format.KindHead)
	var h format.Head
	if err == nil {
		h, err = format.DecodeHead(b, t.id)
	}
	switch {
	case err == nil:
		t.head, t.headETag, t.headRead = h, meta.ETag, time.Now()
		return nil
	case errors.Is(err, bucket.ErrMissing), errors.Is(err, format.ErrForeign), format.Damaged(err):
		// Perhaps the whole bucket was emptied: then it is not this one's any more.
		t.s.o.Follower.Suspect()
		if err := t.s.o.Follower.CatchUp(ctx); err != nil {
			return err
		}
		if err := t.guard(); err != nil {
			return err
		}
		t.headETag = meta.ETag
		return t.rebuild(ctx, err)
	}
	return err
}

// rebuild makes the head again, from the parts whose names cover most of the log.
func (t *term) rebuild(ctx context.Context, why error) error {
	parts, err := t.findParts(ctx)
	if err != nil {
		return err
	}
	h := format.Head{Parts: cover(parts)}
	for _, p := range h.Parts {
		h.Last = max(h.Last, p.Name.Number)
	}
	// What lies between the parts and the log is gone; nodes that follow go on after it.
	logs, err := t.s.o.Client.List(ctx, format.LogPrefix, format.LogName(h.Last).String(), 1)
	if err != nil {
		return err
	}
	if len(logs) > 0 {
		if first, err := format.ParseName(logs[0].Name); err == nil && first.Kind == format.KindLog {
			if there, err := follow.ReadList(ctx, t.s.o.Client, first, t.id, t.s.o.Ring); err == nil && !errors.Is(there.Bad, format.ErrForeign) {
				h.Last = max(h.Last, first.Number-1)
			}
		}
	} else if now, _ := t.s.o.Follower.Position(); now > h.Last {
		h.Last = now
	}
	t.headRead = time.Now()
	if h.Last == 0 {
		t.head = format.Head{} // a bucket that has none yet
		return nil
	}
	t.s.o.Logger.Warn("the head of the bucket's lists was lost: it was made again from what is there", slog.Any("error", why),
		slog.Int("parts", len(h.Parts)), slog.Uint64("last", h.Last))
	return t.putHead(ctx, h)
}

// findParts reads all parts that there are.
func (t *term) findParts(ctx context.Context) ([]format.Part, error) {
	metas, err := t.listAll(ctx, format.PartPrefix)
	if err != nil {
		return nil, err
	}
	all := make([]format.Part, len(metas))
	g, group := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	for i, m := range metas {
		name, err := format.ParseName(m.Name)
		if err != nil || name.Kind != format.KindPart {
			continue
		}
		g.Go(func() error {
			s, err := follow.ReadList(group, t.s.o.Client, name, t.id, t.s.o.Ring)
			if errors.Is(err, bucket.ErrMissing) || err == nil && s.Bad != nil && !forOthers(s.Bad) {
				return nil
			}
			all[i] = format.Part{Name: name, Bytes: m.Bytes, Sum: s.Sum}
			if s.List != nil {
				for j := range s.List.Objects {
					all[i].Records += uint64(len(s.List.Objects[j].Records))
				}
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(p format.Part) bool { return p.Name.Number == 0 }), nil
}

// listAll lists all objects whose names begin with a prefix.
func (t *term) listAll(ctx context.Context, prefix string) (all []bucket.Meta, err error) {
	for after := ""; ; {
		metas, err := t.s.o.Client.List(ctx, prefix, after, pageNames)
		all = append(all, metas...)
		if err != nil || len(metas) < pageNames {
			return all, err
		}
		after = metas[len(metas)-1].Name
	}
}

// cover are the parts that have the log from its start on, each stretch in the part that has most of it.
// Parts of one stretch are taken together: they may be one that did not fit into one object.
func cover(parts []format.Part) (taken []format.Part) {
	slices.SortFunc(parts, func(a, b format.Part) int {
		return cmp.Or(cmp.Compare(a.Name.First, b.Name.First), cmp.Compare(b.Name.Number, a.Name.Number))
	})
	for next := uint64(1); ; {
		best := -1
		for i, p := range parts {
			if best >= 0 && p.Name.First > max(next, parts[best].Name.First) {
				break
			}
			if p.Name.Number >= next && (best < 0 || p.Name.Number > parts[best].Name.Number) {
				best = i
			}
		}
		if best < 0 {
			return taken
		}
		first, last := parts[best].Name.First, parts[best].Name.Number
		for _, p := range parts {
			if p.Name.First == first && p.Name.Number == last {
				taken = append(taken, p)
			}
		}
		next = last + 1
	}
}

// putHead puts the next head.
func (t *term) putHead(ctx context.Context, h format.Head) error {
	h.Bucket, h.IntervalMS = t.id, uint32(t.interval().Milliseconds())
	h.Generation = max(t.head.Generation+1, uint64(format.SecondsOf(t.s.o.Now())))
	b, err := h.Encode()
	if err != nil {
		return err
	}
	if err := t.guard(); err != nil {
		return err
	}
	if !t.s.o.Client.Conditional() {
		if err := t.confirm(ctx); err != nil {
			return err
		}
	}
	c := bucket.Condition{ETag: t.headETag}
	if t.headETag == "" {
		c.Absent = true
	}
	t.mu.Lock()
	left := holdFor - time.Since(t.renewed)
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	meta, err := t.s.o.Client.Put(ctx, format.HeadFile, bytes.NewReader(b), int64(len(b)), c)
	if err != nil {
		return err
	}
	t.head, t.headETag, t.headRead = h, meta.ETag, time.Now()
	return nil
}
