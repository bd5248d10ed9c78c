package handoff

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
)

// hostTiers map the memories that offers may name, newest first: that of the daemon in use,
// and, since an offer may be older than the daemon's restart, the one before. A mapping stays
// readable when its daemon is gone. The sums tell which of them an offer means.
type hostTiers struct {
	// mu is held for reading while a mapping is read.
	mu     sync.RWMutex
	newest [][]byte
	expiry *time.Timer
	// seen counts the mappings made so far.
	seen int
}

// keptTiers is how many are kept: each holds the memory of a whole daemon.
const keptTiers = 2

// mapHostTier maps the memory that came with the answer to register, whole and read-only.
func mapHostTier(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("host tier: %w", err)
	}
	size := info.Size()
	if size <= 0 || int64(int(size)) != size {
		return nil, fmt.Errorf("%w: host tier of %d bytes", connector.ErrProtocol, size)
	}
	// Without the seal a read could fault on memory that is no more.
	if seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: host tier is not sealed against shrinking", connector.ErrProtocol)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a host tier of %d bytes: %w", size, err)
	}
	return mem, nil
}

// add maps the memory of a daemon that is new. The one before is kept for as long as an offer
// may name it.
func (s *hostTiers) add(f *os.File, keep time.Duration) error {
	mem, err := mapHostTier(f)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = append([][]byte{mem}, s.newest...)
	s.unmap(keptTiers)
	s.seen++
	if s.expiry != nil {
		s.expiry.Stop()
	}
	added := s.seen
	s.expiry = time.AfterFunc(keep, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.seen == added {
			s.unmap(1)
		}
	})
	return nil
}

// unmap gives up all but the n newest. s.mu is held.
func (s *hostTiers) unmap(n int) {
	for len(s.newest) > n {
		last := len(s.newest) - 1
		_ = unix.Munmap(s.newest[last])
		s.newest = s.newest[:last]
	}
}

// read calls use with the mappings, which stay while it runs, and returns how many were made
// so far.
func (s *hostTiers) read(use func(newest [][]byte)) (seen int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	use(s.newest)
	return s.seen
}

// close gives all of them up.
func (s *hostTiers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.unmap(0)
}
