package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

// mostPast objects of the log are remembered, to find out which of them were written twice.
const mostPast = 16

// past is an object of the log that was applied.
type past struct {
	number  uint64
	sum     format.Sum
	sources []format.Source
}

// next asks for the next objects of the log, up to most of them at once, and applies those that are there. It
// returns how many it applied. old is set if the last of them was written so long ago that there may be more.
func (f *Follower) next(ctx context.Context, most int) (n int, old bool, err error) {
	found, err := f.ask(ctx, most)
	if err != nil {
		return 0, false, err
	}
	for _, s := range found {
		name := format.LogName(f.position + 1)
		went, err := f.step(ctx, name, s)
		if err != nil {
			return n, false, err
		}
		if !went {
			break
		}
		n++
		old = s.Now.Sub(s.Modified) > 2*f.head.Interval()
	}
	f.polled(n < most)
	return n, old, nil
}

// ask reads objects of the log after the last one, up to the first that is missing.
func (f *Follower) ask(ctx context.Context, most int) ([]*Stored, error) {
	found := make([]*Stored, most)
	g, group := errgroup.WithContext(ctx)
	for i := range found {
		g.Go(func() error {
			s, err := ReadList(group, f.o.Client, format.LogName(f.position+1+uint64(i)), f.bucket, f.o.Ring)
			if errors.Is(err, bucket.ErrMissing) {
				return nil
			}
			found[i] = &s
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, s := range found {
		if s == nil {
			return found[:i], nil
		}
	}
	return found, nil
}

// step goes on by one object of the log. It reports false if that is none yet.
func (f *Follower) step(ctx context.Context, name format.Name, s *Stored) (bool, error) {
	switch {
	case s.Bad == nil:
		if len(f.past) > 0 && s.List.Previous != f.sum {
			if err := f.fork(ctx); err != nil {
				return false, err
			}
		}
		f.apply(s.List, s.Modified)
		return true, nil
	case errors.Is(s.Bad, format.ErrForeign):
		// Left from before the bucket was emptied; or it was emptied just now.
		was := f.bucket
		if err := f.identify(ctx); err != nil || f.bucket != was {
			return false, err
		}
		return false, nil
	case format.Damaged(s.Bad) && f.failures+1 < tries:
		f.failures++ // perhaps on its way
		return false, fmt.Errorf("%w: %w", errAgain, s.Bad)
	}
	f.bad(name, s.Bad)
	f.opens(format.SecondsOf(s.Modified), s.Bad)
	f.advance(name.Number, s.Sum, nil)
	return true, nil
}

// errAgain is that of what may be better when it is read again.
var errAgain = errors.New("the log is read again")

// fork reads the object of the log at the present position again: two stewards wrote it, and what was applied
// is not what is there now. It goes back to the first object that is the same.
func (f *Follower) fork(ctx context.Context) error {
	for i := len(f.past) - 1; i >= 0; i-- {
		p := &f.past[i]
		name := format.LogName(p.number)
		s, err := ReadList(ctx, f.o.Client, name, f.bucket, f.o.Ring)
		if errors.Is(err, bucket.ErrMissing) {
			return nil
		}
		if err != nil {
			return err
		}
		if s.Sum == p.sum {
			return nil
		}
		f.set(func() { f.stats.Forks++ })
		f.o.Logger.Info("two nodes wrote one object of the bucket's log: both are applied", slog.String("name", name.String()))
		// The lists that nothing but the other one had have to be told again.
		f.o.Outbox.Unlogged(p.sources)
		p.sum, p.sources = s.Sum, nil
		if s.Bad != nil {
			f.bad(name, s.Bad)
			return nil
		}
		f.o.Catalog.Apply(s.List)
		f.o.Outbox.Logged(s.List.Sources)
		p.sources = s.List.Sources
		if i == 0 || s.List.Previous == f.past[i-1].sum {
			return nil
		}
	}
	return nil
}

// apply takes in the next object of the log.
func (f *Follower) apply(l *format.List, written time.Time) {
	f.o.Catalog.Apply(l)
	f.o.Outbox.Logged(l.Sources)
	f.advance(l.Name.Number, l.Sum, l.Sources)
	f.opens(format.SecondsOf(written), nil)
	f.set(func() {
		f.stats.Followed++
		f.newest = written
	})
}

// advance moves the position.
func (f *Follower) advance(n uint64, sum format.Sum, sources []format.Source) {
	f.failures = 0
	if len(f.past) == mostPast {
		f.past = slices.Delete(f.past, 0, 1)
	}
	f.past = append(f.past, past{n, sum, sources})
	f.set(func() { f.position, f.sum = n, sum })
}
