package handoff

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
)

// hostTiers map the memories that offers may name, newest first: that of the daemon in use,
// and, since an offer may be older than the daemon's restart, the one before. A mapping stays
// readable when its daemon is gone. The sums tell which of them an offer means.
type hostTiers struct {
	mu     sync.Mutex
	newest []*hostTier
	expiry *time.Timer
	// seen counts the mappings made so far.
	seen int
}

// hostTier is a mapping, which stays while it is read.
type hostTier struct {
	mem     []byte
	readers sync.WaitGroup
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
	s.newest = slices.Insert(s.newest, 0, &hostTier{mem: mem})
	s.keepNewest(keptTiers)
	s.seen++
	if s.expiry != nil {
		s.expiry.Stop()
	}
	added := s.seen
	s.expiry = time.AfterFunc(keep, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.seen == added {
			s.keepNewest(1)
		}
	})
	return nil
}

// unmap gives the mapping up once it is no longer read.
func (t *hostTier) unmap() {
	t.readers.Wait()
	_ = unix.Munmap(t.mem)
}

// keepNewest gives up all but the n newest, each once it is no longer read. s.mu is held.
func (s *hostTiers) keepNewest(n int) {
	for _, t := range s.newest[min(n, len(s.newest)):] {
		go t.unmap()
	}
	s.newest = s.newest[:min(n, len(s.newest))]
}

// read calls use with the mappings, which stay while it runs, and with how many were made so far.
func (s *hostTiers) read(use func(newest [][]byte, seen int)) {
	s.mu.Lock()
	seen := s.seen
	var newest [][]byte
	for _, t := range s.newest {
		t.readers.Add(1)
		defer t.readers.Done()
		newest = append(newest, t.mem)
	}
	s.mu.Unlock()
	use(newest, seen)
}

// close gives all of them up. No copy is under way.
func (s *hostTiers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiry != nil {
		s.expiry.Stop()
	}
	for _, t := range s.newest {
		t.unmap()
	}
	s.newest = nil
}
