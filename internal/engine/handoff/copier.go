package handoff

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
)

// copier copies blocks from the daemon's host tier into engine memory. It needs no daemon to
// do that.
type copier struct {
	namespace string
	manifest  connector.Manifest
	rank      int
	layout    *connector.Layout
	regions   [][]byte
	tiers     hostTiers
	logger    *slog.Logger

	mu   sync.Mutex
	jobs map[*job]struct{}
	// off is set while no load may begin, closed for good.
	off, closed bool
}

// job is one request's load.
type job struct {
	request string
	blocks  []blockCopy
	bytes   int
	// failed are blocks that could not be tried.
	failed   []uint32
	canceled atomic.Bool
	done     chan struct{} // closed after the report
}

// blockCopy is one block to copy.
type blockCopy struct {
	group *connector.GroupLayout
	slot  uint32
	from  connector.HandoffBlock
}

// newCopier maps the engine's regions, which must fit the layout.
func newCopier(o *client.Options, rank int, layout *connector.Layout, regions []*os.File) (_ *copier, err error) {
	if len(layout.Groups) != len(o.Manifest.Groups) {
		return nil, fmt.Errorf("handoff: %w: %d groups, the manifest has %d", connector.ErrLayout, len(layout.Groups), len(o.Manifest.Groups))
	}
	s := &copier{
		namespace: o.Manifest.Digest().String(), manifest: o.Manifest, rank: rank, layout: layout, logger: o.Logger, jobs: make(map[*job]struct{}),
	}
	defer func() {
		if err != nil {
			s.unmapRegions()
		}
	}()
	sizes := make([]int64, len(regions))
	for i, f := range regions {
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("handoff: region %d: %w", i, err)
		}
		sizes[i] = info.Size()
		mem, err := unix.Mmap(int(f.Fd()), 0, int(sizes[i]), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, fmt.Errorf("handoff: map region %d: %w", i, err)
		}
		s.regions = append(s.regions, mem)
	}
	if err := layout.Validate(sizes); err != nil {
		return nil, fmt.Errorf("handoff: %w", err)
	}
	return s, nil
}

func (s *copier) unmapRegions() {
	for _, mem := range s.regions {
		_ = unix.Munmap(mem)
	}
	s.regions = nil
}

// start copies a load in the background. It calls report once, unless it returns false:
// then it has done nothing. refresh looks for a newer host tier.
func (s *copier) start(l *load, refresh func(), report func(connector.FinishedLoad)) bool {
	j := s.plan(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.off || s.closed {
		return false
	}
	s.jobs[j] = struct{}{}
	go func() {
		failed := s.run(j, refresh)
		if len(failed) > 0 {
			s.logger.Error("blocks in the host tier are not what was offered: the engine must not use them",
				"request", j.request, "failed", len(failed), "blocks", len(j.blocks)+len(j.failed), "canceled", j.canceled.Load())
		}
		report(connector.FinishedLoad{Request: j.request, FailedBlocks: failed})
		s.mu.Lock()
		delete(s.jobs, j)
		s.mu.Unlock()
		close(j.done)
	}()
	return true
}

// plan lists what this rank copies of a load.
func (s *copier) plan(l *load) *job {
	j := &job{request: l.Request, done: make(chan struct{})}
	for i := range l.Stretches {
		st := &l.Stretches[i]
		if st.Group >= len(s.layout.Groups) {
			j.failed = append(j.failed, st.Slots...)
			continue
		}
		shard, ok := s.manifest.Shard(s.rank, st.Group)
		if !ok {
			continue
		}
		at := slices.IndexFunc(st.Shards, func(h connector.HandoffShard) bool { return h.Shard == shard })
		if at < 0 || len(st.Shards[at].Blocks) != len(st.Slots) {
			j.failed = append(j.failed, st.Slots...)
			continue
		}
		g := &s.layout.Groups[st.Group]
		for k, slot := range st.Slots {
			if slot >= g.Blocks {
				j.failed = append(j.failed, slot)
				continue
			}
			j.blocks = append(j.blocks, blockCopy{group: g, slot: slot, from: st.Shards[at].Blocks[k]})
			j.bytes += g.BlockBytes()
		}
	}
	return j
}

// parallelBytes is the size from which a load is copied by more than one goroutine:
// smaller ones take less than a millisecond.
const parallelBytes = 8 << 20

// run copies all blocks, and returns those that failed.
func (s *copier) run(j *job, refresh func()) []uint32 {
	failed, tried := j.blocks, -1
	try := func(tiers [][]byte, seen int) {
		if seen != tried {
			failed, tried = s.copyAll(j, failed, tiers), seen
		}
	}
	s.tiers.read(try)
	if len(failed) > 0 && !j.canceled.Load() {
		// The offer may come from a daemon that this client has not met yet.
		refresh()
		s.tiers.read(try)
	}
	out := j.failed
	for i := range failed {
		out = append(out, failed[i].slot)
	}
	return out
}

// copyAll copies blocks and returns those that failed.
func (s *copier) copyAll(j *job, blocks []blockCopy, from [][]byte) []blockCopy {
	copiers := 1
	if j.bytes >= parallelBytes {
		copiers = min(runtime.GOMAXPROCS(0), len(blocks))
	}
	var (
		next   atomic.Int64
		mu     sync.Mutex
		failed []blockCopy
		wg     sync.WaitGroup
	)
	work := func() {
		sum := xxh3.New()
		for i := next.Add(1) - 1; i < int64(len(blocks)); i = next.Add(1) - 1 {
			if j.canceled.Load() || !s.copyBlock(&blocks[i], from, sum) {
				mu.Lock()
				failed = append(failed, blocks[i])
				mu.Unlock()
			}
		}
	}
	for range copiers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	return failed
}

// copyBlock copies a block from the first host tier that has it.
func (s *copier) copyBlock(b *blockCopy, from [][]byte, sum *xxh3.Hasher) bool {
	size := uint64(b.group.BlockBytes())
	for _, mem := range from {
		if all := uint64(len(mem)); size > all || b.from.Offset > all-size {
			continue
		}
		sum.Reset()
		s.scatter(b, mem[b.from.Offset:][:size], sum)
		if sum.Sum64() == b.from.Sum {
			return true
		}
	}
	return false
}

// scatter copies a block's payload to its pieces, and sums up what it has written. The
// layout was validated and the slot is one of it, so that every piece lies in its region.
func (s *copier) scatter(b *blockCopy, payload []byte, sum *xxh3.Hasher) {
	for i := range b.group.Runs {
		r := &b.group.Runs[i]
		for layer := range uint64(r.Layers) {
			at := r.Offset + layer*r.LayerStride + uint64(b.slot)*r.BlockStride
			dst := s.regions[r.Region][at:][:r.Bytes]
			copy(dst, payload)
			_, _ = sum.Write(dst) // cannot fail
			payload = payload[r.Bytes:]
		}
	}
}

// cancel has a request's load end early. The channel is closed when it has ended and
// reported what is missing as failed; there is none where nothing is copied.
func (s *copier) cancel(request string) []<-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end(func(j *job) bool { return j.request == request })
}

// end has the loads end early that are meant. s.mu is held.
func (s *copier) end(meant func(*job) bool) (ends []<-chan struct{}) {
	for j := range s.jobs {
		if meant(j) {
			j.canceled.Store(true)
			ends = append(ends, j.done)
		}
	}
	return ends
}

// forbid lets no load begin until allow, and has all end early, as cancel does.
func (s *copier) forbid() []<-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = true
	return s.end(func(*job) bool { return true })
}

func (s *copier) allow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = false
}

// close ends all loads and unmaps everything.
func (s *copier) close() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return
	}
	for _, done := range s.forbid() {
		<-done
	}
	s.unmapRegions()
	s.tiers.close()
}
