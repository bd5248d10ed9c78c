package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/format"
)

// discardBytes is how much that nobody wants is read at one time.
const discardBytes = 64 << 10

// stream sends a GET for the first stretch of a run's records without a large gap, and reads them from its
// body. It returns the record that the body ended in with an error.
func (f *Fetcher) stream(ctx context.Context, r *run, s *scratch) (at *task, err error) {
	n := 1
	for n < len(r.tasks) && r.tasks[n].place.From-r.tasks[n-1].end() <= f.o.GapBytes {
		n++
	}
	first, last := r.tasks[0].place.From, r.tasks[n-1].end()
	name := format.DataName(r.tasks[0].place.Object).String()
	body, err := f.get(ctx, r, name, first, last-first)
	if err != nil {
		return nil, err
	}
	defer body.close()
	for i, t := range r.tasks[:n] {
		gap := t.place.From - body.at
		if gap > f.o.GapBytes {
			return nil, nil // another request is cheaper
		}
		if err = f.discard(body, s, gap); err != nil {
			return r.tasks[i], err
		}
		if !f.take(t) {
			continue
		}
		if err = f.record(body, s, r, i); err != nil {
			return r.tasks[i], err // nil if it has ended
		}
	}
	// A connection whose body was read to its end is used again. What comes now is of no record.
	_ = f.discard(body, s, last-body.at)
	return nil, nil
}

// record reads a record that is arriving. The error is that of the body; the record has ended then, or it is to
// be read again.
func (f *Fetcher) record(body *body, s *scratch, r *run, i int) error {
	t := r.tasks[i]
	began := body.at == body.first
	err := body.full(s.header[:])
	var bad error
	if err == nil {
		if bad = f.open(t, s); bad == nil {
			stored := s.into(t.op.Payload)
			if err = body.full(stored); err == nil {
				bad = f.verify(t, s, stored)
			}
		}
	}
	if err != nil {
		f.putBack(r, i)
		return err
	}
	switch {
	case bad == nil:
		t.op.Scope, t.op.From = s.opened.Scope, f.o.Name
		if began {
			f.firstOf(r)
		}
		f.done(r, i, nil)
	case errors.Is(bad, store.ErrGone): // it is intact, and not for us
		f.done(r, i, bad)
	default:
		if t.bad++; t.bad < maxBad {
			f.putBack(r, i)
			return nil
		}
		bad = fmt.Errorf("record %v at %d of object %s: %w: %w", t.op.ID.Key, t.place.From, t.place.Object, store.ErrCorrupt, bad)
		f.lose(t.place.Object, format.CauseDamaged, bad)
		f.done(r, i, bad)
	}
	return nil
}

// firstOf notes how long the first record of a range took.
func (f *Fetcher) firstOf(r *run) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.speed.first(time.Since(r.began))
}

// discard reads bytes that nobody wants.
func (f *Fetcher) discard(b *body, s *scratch, bytes int64) error {
	if bytes > 0 {
		f.counts.gaps.Add(uint64(bytes))
	}
	for bytes > 0 {
		part := s.stored[:min(bytes, int64(len(s.stored)))]
		if err := b.full(part); err != nil {
			return err
		}
		bytes -= int64(len(part))
	}
	return nil
}

// body is what arrives of an object. A read that gets nothing for a time breaks it off.
type body struct {
	io.ReadCloser
	first, at int64 // places in the object: of the first byte and the next
	stall     time.Duration
	timer     *time.Timer // breaks it off
	end       func()
}

// full fills p.
func (b *body) full(p []byte) error {
	for len(p) > 0 {
		b.timer.Reset(b.stall)
		n, err := b.Read(p)
		b.timer.Stop()
		b.at += int64(n)
		p = p[n:]
		switch {
		case len(p) == 0:
			return nil
		case errors.Is(err, io.EOF):
			return errShort
		case err != nil:
			return err
		}
	}
	return nil
}

// close ends the body.
func (b *body) close() {
	b.timer.Stop()
	_ = b.Close()
	b.end()
}
