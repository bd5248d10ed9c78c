package disk

import (
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

// Close stops the store: writes that were accepted are finished, everything is made
// durable, and a snapshot of the index is written so that the next open is quick. Calls
// of Read that are under way end by their deadlines first. Where the disk does not answer
// Close ends after [Options.CloseWait] with [store.ErrTimeout]: what had passed a barrier is safe,
// but the process still holds the directory, and goroutines of the store may be there.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		if s.closeErr = fsio.Within(s.opts.CloseWait, s.close); errors.Is(s.closeErr, fsio.ErrNoAnswer) {
			s.closeErr = fmt.Errorf("close store %s: %w: %w", s.opts.Dir, s.closeErr, store.ErrTimeout)
		}
	})
	return s.closeErr
}

func (s *Store) close() error {
	s.namespaces.Close()
	s.writes.close()
	s.writers.Wait()
	hung := s.reads.Close()
	s.stop()
	s.background.Wait()
	s.commits.Close()
	s.committed.Wait()
	s.events.Close()
	subscribed := s.subscriptions.Close()
	s.barrier.Touch()
	s.barrier.Make()
	s.barrier.Close()
	err := s.makeDurable()
	if err == nil {
		s.space.RemoveEmptied()
		s.state.Quicken(s.seq.Load(), !hung && !s.rebuild.Running())
	}
	err = errors.Join(err, subscribed, s.state.Close(hung))
	if err != nil {
		return fmt.Errorf("close store %s: %w", s.opts.Dir, err)
	}
	return nil
}

// makeBarrier makes what was written durable, and the slots that were freed writable.
func (s *Store) makeBarrier() (more bool, err error) {
	freed := s.space.TakePending()
	err = s.makeDurable()
	s.space.Release(freed, err == nil)
	s.count.Barriers.Add(1)
	if err != nil {
		s.count.BarrierErrors.Add(1)
	}
	return s.space.AnyPending(), err
}

// makeDurable is the barrier itself.
func (s *Store) makeDurable() error {
	if err := s.space.Sync(); err != nil {
		// Without the payloads the index entries must not be promised either.
		return err
	}
	if err := s.state.SyncJournal(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrIO, err)
	}
	return nil
}
