package steward

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/bits"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

const (
	// The log is folded when it has foldRecords, or is foldAfter old: that is what a node that joins reads one
	// by one.
	foldRecords = 256 << 10
	foldAfter   = 15 * time.Minute
	// recordBytes is what a record takes in a list, where the records are not counted.
	recordBytes = 22
	// maxFold bounds the objects of the log in a fold, maxFoldBytes their bytes: a part is never larger.
	maxFold      = 10_000
	maxFoldBytes = format.MaxPartBytes - 64<<10
	// unreadFor is how long the log is not folded because of objects of it that are not sealed, where there is a key
	// file, or are sealed with a key that is not in it: other nodes may read them. Where all nodes have the same key
	// file nobody ever will.
	unreadFor = 24 * time.Hour
	// partsAtOnce bounds the memory of lists that are read at once.
	partsAtOnce = 4
	// mergeParts of a size class make one of the next. Parts of the first class have up to smallPart records.
	mergeParts = 8
	smallPart  = 32 << 10
	// manyParts are merged whatever their classes: a head has 512 at most.
	manyParts = 64
)

// fold folds the log into a part if that is due, and parts into larger ones.
func (t *term) fold(ctx context.Context) error {
	if t.logSince.IsZero() || time.Now().Before(t.foldAgain) {
		return nil
	}
	old := t.s.o.Now().Sub(t.logSince) >= foldAfter
	if t.logRecords < foldRecords && t.logBytes < maxFoldBytes/2 && !old {
		return nil
	}
	if err := t.foldLog(ctx); err != nil {
		return err
	}
	for {
		window := t.window()
		if len(window) == 0 {
			return nil
		}
		if err := t.compact(ctx, window); err != nil {
			return err
		}
	}
}

// foldLog makes a part of the log after the head.
func (t *term) foldLog(ctx context.Context) error {
	end, _ := t.s.o.Follower.Position()
	d, last, size := newDigest(), t.head.Last, int64(0)
	passed, why := 0, error(nil)
	for full := false; last < end && !full; {
		lists, err := t.readLog(ctx, last, min(end, last+listsAtOnce))
		if err != nil {
			return err
		}
		for _, l := range lists {
			if full = size+l.Bytes > maxFoldBytes || t.blocks(format.LogName(last+1), &l); full {
				break // the rest has to wait, for the next fold or for a program that understands it
			}
			if forOthers(l.Bad) {
				passed, why = passed+1, l.Bad
			}
			if l.List != nil {
				if full = !d.takes(l.List); full {
					break
				}
				t.s.o.Follower.Again(l.List)
				d.add(l.List)
			}
			size += l.Bytes
			last++
		}
	}
	if last == t.head.Last {
		t.foldAgain = time.Now().Add(foldAfter)
		return nil
	}
	h := t.head
	if d.settle(len(h.Parts) == 0); !d.empty() {
		p, err := t.putPart(ctx, d, h.Last+1, last)
		if err != nil {
			return err
		}
		h.Parts = append(h.Parts[:len(h.Parts):len(h.Parts)], p)
	}
	h.Last = last
	if err := t.putHead(ctx, h); err != nil {
		return err
	}
	t.tellPassed(passed, why)
	t.s.counts.folds.Add(1)
	t.swept = time.Time{}
	if last == end {
		t.logRecords, t.logBytes, t.logSince = 0, 0, time.Time{}
		return nil
	}
	return t.measure(ctx)
}

// blocks reports whether the log is not to be folded past an object of it, which others may read. It tells of the first
// object that is in the way.
func (t *term) blocks(name format.Name, l *follow.Stored) bool {
	if !forOthers(l.Bad) || !errors.Is(l.Bad, format.ErrNewer) && l.Now.Sub(l.Modified) > unreadFor {
		return false
	}
	if name != t.blocked {
		t.blocked = name
		t.s.o.Logger.Warn("the bucket's log cannot be folded past an object of it that this node cannot read",
			slog.String("name", name.String()), slog.Any("error", l.Bad), slog.String("remedy", follow.Remedy(l.Bad)))
	}
	return true
}

// tellPassed tells of objects of the log that were folded unread.
func (t *term) tellPassed(n int, why error) {
	if n > 0 {
		t.s.o.Logger.Warn("objects of the bucket's log that nobody could read for a day are passed over: what they alone tell is lost",
			slog.Int("objects", n), slog.Any("error", why), slog.String("remedy", follow.Remedy(why)))
	}
}

// forOthers reports whether a list that cannot be used here may be good for other nodes: those with a newer program,
// another key, or none.
func forOthers(bad error) bool {
	return errors.Is(bad, format.ErrNewer) || errors.Is(bad, format.ErrUnsealed) || errors.Is(bad, seal.ErrUnknownKey)
}

// readLog reads the objects of the log after a number, up to another. What is missing says nothing.
func (t *term) readLog(ctx context.Context, after, last uint64) ([]follow.Stored, error) {
	all := make([]follow.Stored, last-after)
	g, group := errgroup.WithContext(ctx)
	for i := range all {
		g.Go(func() (err error) {
			all[i], err = follow.ReadList(group, t.s.o.Client, format.LogName(after+1+uint64(i)), t.id, t.s.o.Ring)
			if errors.Is(err, bucket.ErrMissing) {
				return nil
			}
			return err
		})
	}
	return all, g.Wait()
}

// putPart puts a part with the log from first to last.
func (t *term) putPart(ctx context.Context, d *digest, first, last uint64) (format.Part, error) {
	t.s.parts++
	l := &format.List{Name: format.PartName(first, last, format.NewObjectID(t.s.writer, t.s.parts)), Bucket: t.id, Writer: t.s.writer}
	d.fill(l)
	data, err := l.Encode(t.s.o.Ring)
	if err != nil {
		return format.Part{}, err
	}
	if err := t.guard(); err != nil {
		return format.Part{}, err
	}
	p := format.Part{Name: l.Name, Bytes: int64(len(data)), Sum: format.SumOf(data), Records: d.records()}
	return p, t.put(ctx, l.Name, data, bucket.Condition{Absent: true})
}

// class is the size class of a part: 0 up to smallPart records, and 8 times as many in each after it.
func class(p *format.Part) int { return (bits.Len64(p.Records/smallPart) + 2) / 3 }

// window returns neighbours among the parts that are to be merged: first and one past the last, none if there
// are none. Parts are merged with neighbours alone, so that the name of what comes out says what it covers.
func (t *term) window() []format.Part {
	parts := t.head.Parts
	for c := 0; c <= 64/3; c++ {
		for i := 0; i < len(parts); {
			n, same := 0, 0
			for j := i; j < len(parts) && class(&parts[j]) <= c && !t.useless[parts[j].Name]; j++ {
				n++
				if class(&parts[j]) == c {
					same++
				}
			}
			if same >= mergeParts {
				if w := fitting(parts[i : i+n]); len(w) > 1 {
					return w
				}
			}
			i += max(n, 1)
		}
	}
	if len(parts) <= manyParts {
		return nil
	}
	var best []format.Part
	for i := range parts[:len(parts)-1] {
		w := parts[i : i+2]
		if !t.useless[w[0].Name] && !t.useless[w[1].Name] && len(fitting(w)) == 2 && (best == nil || size(w) < size(best)) {
			best = w
		}
	}
	return best
}

// fitting are the last of some parts that fit into one.
func fitting(parts []format.Part) []format.Part {
	for i := range parts {
		if size(parts[i:]) <= maxFoldBytes {
			return parts[i:]
		}
	}
	return nil
}

func size(parts []format.Part) (n int64) {
	for _, p := range parts {
		n += p.Bytes
	}
	return n
}

// compact makes one part of several.
func (t *term) compact(ctx context.Context, window []format.Part) error {
	lists, err := t.readParts(ctx, window)
	if err != nil || lists == nil {
		return err
	}
	d := newDigest()
	for i, l := range lists {
		if !d.takes(l) {
			window = window[:i]
			break
		}
		d.add(l)
	}
	if len(window) < 2 {
		t.useless[window[0].Name] = true
		return nil
	}
	first := window[0].Name.First
	last := first
	for _, p := range window {
		first, last = min(first, p.Name.First), max(last, p.Name.Number)
	}
	h := t.head
	d.settle(window[0].Name == h.Parts[0].Name)
	var made []format.Part
	if !d.empty() {
		p, err := t.putPart(ctx, d, first, last)
		if err != nil {
			return err
		}
		made = append(made, p)
	}
	merged := make(map[format.Name]bool, len(window))
	for _, p := range window {
		merged[p.Name] = true
	}
	h.Parts = nil
	for _, p := range t.head.Parts {
		if !merged[p.Name] {
			h.Parts = append(h.Parts, p)
			continue
		}
		h.Parts = append(h.Parts, made...)
		made = nil
	}
	if err := t.putHead(ctx, h); err != nil {
		return err
	}
	t.s.counts.merges.Add(1)
	return nil
}

// readParts reads parts, all of them: it returns none if one cannot be used, which is left where it is.
func (t *term) readParts(ctx context.Context, parts []format.Part) ([]*format.List, error) {
	all := make([]*format.List, len(parts))
	bad := make([]error, len(parts))
	g, group := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	for i, p := range parts {
		g.Go(func() error {
			s, err := follow.ReadList(group, t.s.o.Client, p.Name, t.id, t.s.o.Ring)
			switch {
			case errors.Is(err, bucket.ErrMissing), errors.Is(err, bucket.ErrArchived):
				bad[i] = err
			case err != nil:
				return err
			case s.Bad != nil:
				bad[i] = s.Bad
			case s.Sum != p.Sum:
				bad[i] = format.ErrBad
			}
			all[i] = s.List
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, err := range bad {
		if err != nil {
			t.useless[parts[i].Name] = true
			t.s.o.Logger.Warn("a part of the bucket's lists cannot be read", slog.String("name", parts[i].Name.String()), slog.Any("error", err),
				slog.String("remedy", cmp.Or(bucket.Remedy(err), "kvconnd fsck finds its records again")))
			all = nil
		}
	}
	return all, nil
}
