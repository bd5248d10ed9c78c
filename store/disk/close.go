package disk

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/journal"
)

// undoOpen gives back what a failed Open took.
func (s *Store) undoOpen() error {
	var errs []error
	if s.stop != nil {
		return s.Close()
	}
	if s.opening != nil {
		for _, f := range s.opening.files {
			f.close()
		}
	} else if s.space != nil {
		errs = append(errs, s.space.closeFiles())
	}
	if s.stamp != nil {
		errs = append(errs, s.stamp.Close())
	}
	if s.journal != nil {
		errs = append(errs, s.journal.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	if s.table != nil {
		s.table.Close()
	}
	return errors.Join(errs...)
}

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
		s.space.removeEmptied()
		s.quicken(hung || s.rebuilt.running())
	}
	closed := s.journal.Close()
	if err == nil && errors.Is(closed, journal.ErrFailed) {
		closed = nil // it failed to quicken the next open, which was said: everything is durable
	}
	err = errors.Join(err, subscribed, closed)
	if s.stamp != nil {
		err = errors.Join(err, s.stamp.Close())
	}
	if !hung {
		err = errors.Join(err, s.space.closeFiles())
		s.table.Close()
	}
	err = errors.Join(err, s.lock.Close())
	if err != nil {
		return fmt.Errorf("close store %s: %w", s.opts.Dir, err)
	}
	return nil
}

// quicken makes the next open quick. Everything is durable already: what fails here costs
// time at the next start and no record.
func (s *Store) quicken(hung bool) {
	err := s.journal.Flush()
	if err == nil && !hung {
		// With a journal of unknown size, a snapshot might pass the cap.
		if err = s.space.measureJournal(); err == nil {
			err = s.saveSnapshot()
		}
	}
	if err != nil {
		s.opts.Logger.Warn("store: no snapshot of the index is kept, the next start reads the journal", "err", err,
			"remedy", "free space in the file system of the store if it is full, else look for I/O errors in the kernel's log")
	}
}
