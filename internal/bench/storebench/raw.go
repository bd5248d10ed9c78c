package storebench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/offheap"
)

// shape is how raw I/O is done: requests of one size, depth at a time.
type shape struct{ bytes, depth int }

func (s shape) String() string { return fmt.Sprintf("%d KiB x %d", s.bytes>>10, s.depth) }

// shapes are those that were best on some device.
var shapes = [...]shape{{256 << 10, 16}, {512 << 10, 8}, {512 << 10, 16}, {1 << 20, 4}, {1 << 20, 8}, {2 << 20, 4}, {2 << 20, 8}}

const (
	maxShapeDepth = 16
	maxShapeBytes = 2 << 20
)

// raw is a file for raw I/O. Its requests go round as much memory as the store's records
// do: into a few buffers that stay in the processor's cache a virtual disk reads up to a
// third faster, and no one who keeps what he reads can.
type raw struct {
	file    fsio.File
	bytes   int64
	buffers []byte
}

func newRaw(path string, bytes, bufferBytes int64) (*raw, error) {
	bytes &^= maxShapeBytes - 1
	if bytes == 0 {
		return nil, errors.New("bench store: less than 2 MiB to write in a round")
	}
	f, err := fsio.OS{}.OpenFile(path, true, true)
	if errors.Is(err, fsio.ErrNoDirectIO) {
		f, err = fsio.OS{}.OpenFile(path, true, false)
	}
	if err != nil {
		return nil, err
	}
	r := &raw{file: f, bytes: bytes}
	if r.buffers, err = offheap.Map(int(max(bufferBytes, maxShapeDepth*maxShapeBytes))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	g := rand.NewChaCha8([32]byte{2})
	_, _ = g.Read(r.buffers)
	if err = f.Allocate(bytes); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *raw) close() error { return errors.Join(r.file.Close(), offheap.Unmap(r.buffers)) }

// do goes over the file once, in random order when reading, and returns bytes a second.
func (r *raw) do(s shape, write bool) (float64, error) {
	n, buffers := int(r.bytes)/s.bytes, len(r.buffers)/s.bytes
	order := rand.New(rand.NewPCG(uint64(s.bytes), 3)).Perm(n)
	if write {
		slices.Sort(order)
	}
	var next atomic.Int64
	errs := make([]error, s.depth)
	began := time.Now()
	var wg sync.WaitGroup
	for w := range s.depth {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[w] == nil; i = int(next.Add(1)) - 1 {
				k := i % buffers
				buf := r.buffers[k*s.bytes : (k+1)*s.bytes]
				at := int64(order[i]) * int64(s.bytes)
				if write {
					errs[w] = r.file.WriteVec(buf, nil, at)
				} else {
					errs[w] = r.file.ReadVec(buf, nil, at)
				}
			}
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	if write {
		err = errors.Join(err, r.file.Datasync())
	}
	return float64(n) * float64(s.bytes) / time.Since(began).Seconds(), err
}

func (r *raw) read(s shape) (float64, error)  { return r.do(s, false) }
func (r *raw) write(s shape) (float64, error) { return r.do(s, true) }

// bestShape tries every shape twice and returns the one with the best median.
func (r *raw) bestShape(write bool) (shape, error) {
	if !write {
		// Unwritten extents read as zeros without the disk.
		if _, err := r.write(shapes[3]); err != nil {
			return shape{}, err
		}
	}
	const tries = 2
	var best shape
	var bestRate float64
	for _, s := range shapes {
		var rates []float64
		for range tries {
			rate, err := r.do(s, write)
			if err != nil {
				return shape{}, err
			}
			rates = append(rates, rate)
		}
		if m := median(rates); m > bestRate {
			best, bestRate = s, m
		}
	}
	return best, nil
}

// meter measures wall and processor time of the process.
type meter struct {
	began time.Time
	cpu   float64
}

func startMeter() meter { return meter{time.Now(), cpuSeconds()} }

// stop returns bytes a second and processor seconds for each GiB.
func (m meter) stop(bytes int64) (rate, cpuPerGiB float64) {
	return float64(bytes) / time.Since(m.began).Seconds(), (cpuSeconds() - m.cpu) * gib / float64(bytes)
}

func cpuSeconds() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func median(x []float64) float64 { return percentile(x, 50) }

func percentile(x []float64, p int) float64 {
	if len(x) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(x))
	return s[min(len(s)-1, len(s)*p/100)]
}
