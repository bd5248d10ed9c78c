package campaign

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Tries of saves after the faults are over, and the pause between two.
const (
	tries = 60
	pause = 50 * time.Millisecond
)

// end looks at the store after the faults.
func (r *caseRun) end() {
	r.injector.Off()
	r.faulty = false
	if r.out.Class() == classHang {
		return // it would hang again
	}
	if r.store == nil {
		r.start()
	}
	if r.store == nil {
		return
	}
	r.release()
	r.settle()
	r.worksAgain()
	r.all("at the end")
	if err := r.store.checkBytes(); err != nil {
		r.fail("accounting", err)
	}
	if st := r.store.Stats(); st.Leases != 0 || st.WriteInFlightBytes != 0 || st.ReadInFlightBytes != 0 {
		r.fail("leak", fmt.Errorf("%d leases, %d bytes of writes and %d of reads in flight", st.Leases, st.WriteInFlightBytes, st.ReadInFlightBytes))
	}
	r.stop()
	if left := openBelow(r.dir); len(left) > 0 {
		r.fail("leak", fmt.Errorf("descriptors after the stop: %s", strings.Join(left, " ")))
	}
	n, err := physicalBytes(r.dir)
	if err == nil {
		err = r.limits.check(n)
	}
	if err != nil {
		r.fail("cap passed", fmt.Errorf("after the stop: %w", err))
	}
	if r.start(); r.store == nil {
		return
	}
	r.settle()
	r.all("after the last start")
	r.stop()
}

// settle waits until the store has found the records of a lost journal, and segments that a fault
// kept it from opening.
func (r *caseRun) settle() {
	if err := r.store.rebuilt(); err != nil {
		r.fail("rebuild", err)
	}
}

// worksAgain saves records of both sizes, reads them and makes them durable. This must succeed
// within a few tries.
func (r *caseRun) worksAgain() {
	for z := range sizes {
		var last error
		for try := range tries {
			records := Chain(z, freshChain+try, chainLength)
			before := r.evictions()
			errs, err := r.store.save(records)
			if err != nil {
				r.fail("save", err)
				return
			}
			if last = first(errs); last == nil {
				n := r.read(records)
				if n == len(records) {
					break
				}
				last = fmt.Errorf("%d of %d are there that were just saved", n, len(records))
				// Of a store that is full a segment may just have been given up for another size.
				if r.evictions() == before {
					break // nothing else may take what was saved without an error
				}
			}
			time.Sleep(pause)
		}
		if last != nil {
			r.fail("no saves after the faults", fmt.Errorf("%v: %w", z, last))
		}
	}
	// The first may be told of a write of the journal that failed at the last moment.
	var err error
	for range tries {
		if err = r.store.sync(); err == nil {
			r.madeDurable()
			return
		}
		time.Sleep(pause)
	}
	r.fail("no sync after the faults", err)
}

// all reads everything that was ever saved, and checks that nothing durable is missing.
func (r *caseRun) all(when string) {
	every := make([]Record, 0, len(r.saved))
	durable := make([]Record, 0, len(r.durable))
	for k := range r.saved {
		if r.durable[k] {
			durable = append(durable, k)
		} else {
			every = append(every, k)
		}
	}
	r.read(every)
	n := r.read(durable)
	kept := MinKept * float64(len(durable))
	if r.c.fills() {
		kept -= float64(r.evictions())
	}
	if !r.lossy() && float64(n) < kept {
		r.fail("lost", fmt.Errorf("%s %d of %d durable records are there; %d were evicted; missing of %s",
			when, n, len(durable), r.evictions(), r.missing(durable)))
	}
}

// evictions is how many records all stores of the case have evicted.
func (r *caseRun) evictions() uint64 {
	n := r.evicted
	if r.store != nil {
		n += r.store.Stats().Evicted
	}
	return n
}

// missing lists the chains that lack records, with the number that each lacks.
func (r *caseRun) missing(records []Record) string {
	chains := make(map[Record]int)
	for _, k := range records {
		if !r.store.has(k) {
			chains[Record{k.Size, k.Chain, 0}]++
		}
	}
	var out []string
	for k, n := range chains {
		out = append(out, fmt.Sprintf("%v %d: %d", k.Size, k.Chain, n))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// openBelow lists the segments of a store that this process has open.
func openBelow(dir string) []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil && strings.HasPrefix(target, filepath.Join(dir, "segments")+"/") {
			out = append(out, filepath.Base(target))
		}
	}
	return out
}

// listFiles lists the files of a directory, relative to it, in order.
func listFiles(dir string) []string {
	var s snapshot
	s.dir = dir
	_ = s.list()
	return s.files
}

// sampler measures a store's bytes all the time.
type sampler struct {
	mu     sync.Mutex
	dir    string
	limits limits
	most   error
	end    chan struct{}
	ended  sync.WaitGroup
}

// WatchCap measures what a directory occupies, all the time, until stop is called, which says
// whether it was ever more than the limit.
func WatchCap(dir string, limit int64) (stop func() error) {
	s := new(sampler)
	s.start()
	s.watch(dir, limits{cap: limit})
	return s.stop
}

// sampleInterval is the pause between two measurements.
const sampleInterval = 2 * time.Millisecond

func (s *sampler) start() {
	s.end = make(chan struct{})
	s.ended.Go(func() {
		tick := time.NewTicker(sampleInterval)
		defer tick.Stop()
		for {
			select {
			case <-s.end:
				return
			case <-tick.C:
				s.sample()
			}
		}
	})
}

// watch measures another directory from now on, or none if it is "".
func (s *sampler) watch(dir string, l limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dir, s.limits = dir, l
}

// sample takes the smallest of three measurements: a file that is renamed while one is taken may
// be counted twice in it.
func (s *sampler) sample() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir == "" || s.most != nil {
		return
	}
	var most error
	for range 3 {
		n, err := physicalBytes(s.dir)
		if err != nil {
			return
		}
		if most = s.limits.check(n); most == nil {
			return
		}
	}
	s.most = most
}

// stop ends the measuring and reports whether the cap was exceeded.
func (s *sampler) stop() error {
	close(s.end)
	s.ended.Wait()
	return s.most
}
