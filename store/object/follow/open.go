package follow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

// look reads the head if that is due, and what it names if that is news: at the start, after a gap in the
// log, or when the bucket is another one.
func (f *Follower) look(ctx context.Context) (err error) {
	suspect := f.suspect.Swap(false)
	defer func() {
		if suspect && err != nil { // what was suspected is not known yet, and the catalog may lack a part
			f.Suspect()
		}
	}()
	if f.opened && !suspect && !f.due() {
		return nil
	}
	if !f.opened {
		if err := f.identify(ctx); err != nil {
			return err
		}
	}
	head, found, err := f.readHead(ctx)
	switch {
	case errors.Is(err, format.ErrForeign), err == nil && !found && f.opened && (f.hadHead || suspect || time.Since(f.identified) >= headEvery):
		// Perhaps the bucket was emptied.
		if err := f.identify(ctx); err != nil {
			return err
		}
		if head, found, err = f.readHead(ctx); errors.Is(err, format.ErrForeign) {
			head, found, err = format.Head{}, false, nil // a steward puts another
		}
	}
	switch {
	case errors.Is(err, format.ErrNewer):
		f.set(func() { f.usable = false })
		f.opened = false
		return err
	case format.Damaged(err):
		f.bad(format.Name{Kind: format.KindHead}, err)
		head, found = format.Head{}, false
	case err != nil:
		return err
	}
	if err := f.adopt(ctx, head, found); err != nil {
		return err
	}
	f.headRead, f.headDate, f.hadHead, f.opened = time.Now(), f.o.Now(), found, true
	return nil
}

// due reports whether the head is to be read again. It looks at two clocks: that of a machine that was suspended may have
// stood still.
func (f *Follower) due() bool {
	every := headEvery
	if !f.hadHead {
		every = noHeadEvery
	}
	return max(time.Since(f.headRead), f.o.Now().Sub(f.headDate)) >= every
}

// adopt takes a head. Its parts are read if the log alone does not lead there.
func (f *Follower) adopt(ctx context.Context, head format.Head, found bool) error {
	if found {
		f.set(func() { f.head = head })
	}
	if head.Last <= f.position {
		return nil
	}
	if f.opened {
		n, _, err := f.next(ctx, 1)
		if err != nil || n > 0 {
			return err // the log is still there
		}
		f.o.Logger.Info("the log of the bucket has gone on without this node: the catalog is read again",
			slog.Uint64("at", f.position), slog.Uint64("now", head.Last))
		f.o.Catalog.Forget()
		f.set(func() {
			f.unread = false
			f.stats.Gaps++
		})
	}
	if err := f.readParts(ctx, head); err != nil {
		return err
	}
	f.set(func() { f.position, f.sum = head.Last, format.Sum{} })
	f.past, f.failures = nil, 0
	return nil
}

// readHead reads the head. found is false if there is none.
func (f *Follower) readHead(ctx context.Context) (h format.Head, found bool, err error) {
	b, _, err := Read(ctx, f.o.Client, format.HeadFile, format.KindHead)
	if errors.Is(err, bucket.ErrMissing) {
		return h, false, nil
	}
	if err != nil {
		return h, false, err
	}
	h, err = format.DecodeHead(b, f.bucket)
	return h, err == nil, err
}

// readParts reads the parts of a head, some at once. Parts that cannot be used are passed over.
func (f *Follower) readParts(ctx context.Context, h format.Head) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	for _, p := range h.Parts {
		g.Go(func() error {
			s, err := ReadList(ctx, f.o.Client, p.Name, f.bucket, f.o.Ring)
			switch {
			case errors.Is(err, bucket.ErrMissing):
				s.Bad = fmt.Errorf("%w: %w", format.ErrBad, err)
			case errors.Is(err, bucket.ErrArchived):
				s.Bad = err
			case err != nil:
				return err
			case s.Bad == nil && s.Sum != p.Sum:
				s.Bad = fmt.Errorf("%w: it is not what the head names", format.ErrBad)
			}
			if p.Name.Number == h.Last {
				f.opens(format.SecondsOf(s.Modified), s.Bad)
			}
			if s.Bad != nil {
				f.bad(p.Name, s.Bad)
				return nil
			}
			f.o.Catalog.Apply(s.List)
			f.set(func() {
				f.stats.Parts++
				if s.Modified.After(f.newest) {
					f.newest = s.Modified
				}
			})
			return nil
		})
	}
	return g.Wait()
}

// identify reads which bucket it is, and begins one that is empty. If it is another one than before all that
// was known is forgotten.
func (f *Follower) identify(ctx context.Context) error {
	n, err := f.readNote(ctx)
	if errors.Is(err, bucket.ErrMissing) && !f.o.ReadOnly {
		n, err = f.begin(ctx)
	}
	if err == nil {
		err = f.admit(&n)
	}
	if err != nil {
		if errors.Is(err, format.ErrNewer) || errors.Is(err, ErrKey) {
			f.set(func() { f.usable = false })
		}
		return err
	}
	f.identified = time.Now()
	if n.Bucket == f.bucket {
		f.set(func() { f.usable = true })
		return nil
	}
	first := f.bucket == (format.BucketID{})
	if !first {
		f.o.Logger.Warn("the bucket was emptied, or is another one: what was known of it is forgotten",
			slog.String("was", f.bucket.String()), slog.String("now", n.Bucket.String()))
		f.o.Catalog.Forget()
	}
	f.set(func() {
		f.bucket, f.usable, f.position, f.sum, f.newest, f.head = n.Bucket, true, 0, format.Sum{}, time.Time{}, format.Head{}
		f.unread, f.lacks = false, f.lacked(&n)
		if !first {
			f.stats.Emptied++
		}
	})
	f.opened, f.hadHead, f.past, f.failures = false, false, nil, 0
	f.o.Outbox.Begin(n.Bucket)
	if !first {
		f.o.Emptied()
	}
	return nil
}

// readNote reads the file format. One that was written just now may be another one in a moment, if nothing kept
// several nodes from writing it.
func (f *Follower) readNote(ctx context.Context) (format.Note, error) {
	for {
		b, meta, err := Read(ctx, f.o.Client, format.FormatFile, format.KindFormat)
		if err != nil {
			return format.Note{}, err
		}
		if f.o.Client.Conditional() || meta.Now.Sub(meta.Modified) >= settle {
			return format.DecodeNote(b)
		}
		if !sleep.For(ctx, settle, nil) {
			return format.Note{}, ctx.Err()
		}
	}
}

// begin writes the file format. Of several nodes that do so at once one succeeds.
func (f *Follower) begin(ctx context.Context) (format.Note, error) {
	n := format.NewNote(format.NewBucketID(), format.SecondsOf(f.o.Now()), f.o.Ring)
	b, err := n.Encode()
	if err != nil {
		return n, err
	}
	_, err = f.o.Client.Put(ctx, format.FormatFile, bytes.NewReader(b), int64(len(b)), bucket.Condition{Absent: true})
	if err != nil && !errors.Is(err, bucket.ErrCondition) {
		return n, err
	}
	return f.readNote(ctx)
}

// lacked is what this node lacks to open what the bucket was begun with.
func (f *Follower) lacked(n *format.Note) lack {
	key, sealed := n.Key()
	if !sealed || f.o.Ring.Has(key) {
		return lack{}
	}
	return lack{fmt.Errorf("%s: %w: key %s", format.FormatFile, seal.ErrUnknownKey, seal.KeyName(key)), n.Created}
}

// admit reports why this node can do nothing with a bucket.
func (f *Follower) admit(n *format.Note) error {
	key, sealed := n.Key()
	switch {
	case sealed && f.o.Ring == nil:
		return fmt.Errorf("%w: %s", ErrKey, seal.KeyName(key))
	case !sealed && f.o.Ring != nil && f.bucket != n.Bucket:
		f.o.Logger.Warn("the bucket was made without a key: what is not sealed in it is not accepted",
			slog.String("remedy", "use another prefix, or give all nodes the key file"))
	}
	return nil
}
