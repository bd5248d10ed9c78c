package disk

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
)

// Close stops the store: writes that were accepted are finished, everything is made
// durable, and a snapshot of the index is written so that the next open is quick. Calls
// of Read that are under way end by their deadlines first. Where the disk does not answer
// Close ends after [Options.CloseWait] with [store.ErrTimeout]: what had passed a barrier is safe,
// but the process still holds the directory, and goroutines of the store may be there.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.closeWithin(s.opts.CloseWait) })
	return s.closeErr
}

func (s *Store) closeWithin(wait time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- s.close() }()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return fmt.Errorf("close store %s: the disk has not answered for %v: %w", s.opts.Dir, wait, store.ErrTimeout)
	}
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
	s.events.log.Close()
	subscribed := s.subscriptions.close()
	s.barrier.Touch()
	s.runBarrier()
	s.barrier.close()
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
