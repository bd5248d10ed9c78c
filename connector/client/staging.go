package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// staging is one mapping of a daemon's staging memory. It stays readable when the daemon
// is gone.
type staging struct {
	mem []byte
	// users are the copies that read from it, retired is set once it may be unmapped; both
	// are guarded by stagings.mu.
	users   int
	retired bool
}

// stagings are the staging memories that plans may name: that of the daemon in use, and,
// since a plan may be older than the daemon's restart, the one before. Which of them a plan
// means the sums tell.
type stagings struct {
	mu     sync.Mutex
	newest []*staging // newest first
	expiry *time.Timer
}

// keptStagings is how many are kept: each holds the memory of a whole daemon.
const keptStagings = 2

// mapStaging maps what came with the answer to register, all of it and read-only.
func mapStaging(f *os.File) (*staging, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("staging memory: %w", err)
	}
	size := info.Size()
	if size <= 0 || int64(int(size)) != size {
		return nil, fmt.Errorf("%w: staging memory of %d bytes", connector.ErrProtocol, size)
	}
	// Without the seal a read could fault on memory that is no more.
	if seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: staging memory is not sealed against shrinking", connector.ErrProtocol)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map staging memory of %d bytes: %w", size, err)
	}
	return &staging{mem: mem}, nil
}

// add makes st the newest. The one before is kept for as long as a plan may name it.
func (s *stagings) add(st *staging, keep time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = append([]*staging{st}, s.newest...)
	s.retireBehind(keptStagings)
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.expiry = time.AfterFunc(keep, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.newest) > 0 && s.newest[0] == st {
			s.retireBehind(1)
		}
	})
}

// retireBehind gives up all but the n newest. s.mu is held.
func (s *stagings) retireBehind(n int) {
	for len(s.newest) > n {
		last := len(s.newest) - 1
		st := s.newest[last]
		s.newest = s.newest[:last]
		st.retired = true
		st.unmapUnused()
	}
}

func (st *staging) unmapUnused() {
	if st.retired && st.users == 0 {
		_ = unix.Munmap(st.mem)
		st.mem = nil
	}
}

// take returns the staging memories, newest first, and keeps them mapped until release.
func (s *stagings) take() []*staging {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := append([]*staging(nil), s.newest...)
	for _, st := range out {
		st.users++
	}
	return out
}

func (s *stagings) release(taken []*staging) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range taken {
		st.users--
		st.unmapUnused()
	}
}

// close gives all of them up.
func (s *stagings) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.retireBehind(0)
}

// takeStaging maps the staging memory that came with an answer.
func (w *Worker) takeStaging(op wire.Op, files []*os.File) error {
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	if op != wire.OpRegister || len(files) != 1 {
		return fmt.Errorf("%w: %d descriptors with the answer to %s", connector.ErrProtocol, len(files), op)
	}
	st, err := mapStaging(files[0])
	if err != nil {
		return err
	}
	w.staged.stagings.add(st, w.link.loadTimeout+w.link.opts.CallTimeout)
	return nil
}

// refreshStaging connects to a daemon that has replaced the one in use.
func (w *Worker) refreshStaging(ctx context.Context) {
	if w.unregistered {
		return
	}
	w.link.revive(ctx, true) // without a daemon what is mapped still serves
}

// loadStaged starts copying what a plan has staged, without asking the daemon.
func (w *Worker) loadStaged(ctx context.Context, metadata []byte, loads []connector.PlannedLoad) {
	w.refreshStaging(ctx)
	plan, err := connector.ParsePlan(metadata)
	if err == nil && plan.Namespace != w.staged.namespace {
		err = errors.New("it is of another namespace")
	}
	if err != nil {
		w.link.opts.Logger.Error("staged loads fail: their plan cannot be used", "err", err,
			"remedy", "run the scheduler and its ranks with one version of the connector")
		w.failPlanned(loads)
		return
	}
	planned := make(map[string]*connector.RequestLoad, len(plan.Loads))
	for i := range plan.Loads {
		planned[plan.Loads[i].Request] = &plan.Loads[i]
	}
	for i := range loads {
		l := planned[loads[i].Request]
		if l == nil || !w.staged.start(l, w.refreshUnlocked, w.report) {
			w.failPlanned(loads[i : i+1])
		}
	}
}

func (w *Worker) refreshUnlocked() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refreshStaging(context.Background())
}

func (w *Worker) report(l connector.FinishedLoad) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports = append(w.reports, l)
}
