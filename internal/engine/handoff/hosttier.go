package handoff

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
)

// hostTier is a mapping of one daemon's host tier. It stays readable when the daemon is gone.
type hostTier struct {
	mem []byte
	// users are the copies that read from it; it is unmapped when it is retired and has none.
	// Both are guarded by hostTiers.mu.
	users   int
	retired bool
}

// hostTiers are the memories that offers may name: that of the daemon in use, and, since an
// offer may be older than the daemon's restart, the one before. The sums tell which of them
// an offer means.
type hostTiers struct {
	mu     sync.Mutex
	newest []*hostTier // newest first
	expiry *time.Timer
}

// keptTiers is how many are kept: each holds the memory of a whole daemon.
const keptTiers = 2

// mapHostTier maps the memory that came with the answer to register, whole and read-only.
func mapHostTier(f *os.File) (*hostTier, error) {
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
	return &hostTier{mem: mem}, nil
}

// add maps the memory of a daemon that is new. The one before is kept for as long as an offer
// may name it.
func (s *hostTiers) add(f *os.File, keep time.Duration) error {
	t, err := mapHostTier(f)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = append([]*hostTier{t}, s.newest...)
	s.retire(keptTiers)
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.expiry = time.AfterFunc(keep, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.newest) > 0 && s.newest[0] == t {
			s.retire(1)
		}
	})
	return nil
}

// retire gives up all but the n newest. s.mu is held.
func (s *hostTiers) retire(n int) {
	for len(s.newest) > n {
		last := len(s.newest) - 1
		t := s.newest[last]
		s.newest = s.newest[:last]
		t.retired = true
		t.unmapUnused()
	}
}

func (t *hostTier) unmapUnused() {
	if t.retired && t.users == 0 {
		_ = unix.Munmap(t.mem)
		t.mem = nil
	}
}

// acquire returns the memories, newest first, and keeps them mapped until release.
func (s *hostTiers) acquire() []*hostTier {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := append([]*hostTier(nil), s.newest...)
	for _, t := range out {
		t.users++
	}
	return out
}

func (s *hostTiers) release(acquired []*hostTier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range acquired {
		t.users--
		t.unmapUnused()
	}
}

// close gives all of them up.
func (s *hostTiers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.retire(0)
}
