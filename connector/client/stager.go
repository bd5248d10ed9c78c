package client

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
)

// stager copies staged blocks from the daemon's staging memory into the engine's, for
// engines that cannot report a failed load. It needs no daemon to do that.
type stager struct {
	namespace connector.NamespaceDigest
	manifest  connector.Manifest
	rank      int
	layout    *connector.Layout
	regions   [][]byte
	stagings  stagings
	logger    *slog.Logger

	mu     sync.Mutex
	jobs   map[string]*stagedJob
	closed bool
}

// stagedJob is one request's load.
type stagedJob struct {
	request string
	blocks  []stagedCopy
	bytes   int
	// failed are blocks that could not be tried.
	failed   []uint32
	canceled atomic.Bool
	done     chan struct{} // closed behind the report
}

// stagedCopy is one block to copy.
type stagedCopy struct {
	group *connector.GroupLayout
	slot  uint32
	from  connector.HandoffBlock
}

// newStager maps the engine's regions, which must fit the layout.
func newStager(o *Options, rank int, layout *connector.Layout, regions []*os.File) (_ *stager, err error) {
	s := &stager{manifest: o.Manifest, rank: rank, layout: layout, logger: o.Logger, jobs: make(map[string]*stagedJob)}
	if s.namespace, err = o.Manifest.Digest(); err != nil {
		return nil, err
	}
	if len(layout.Groups) != len(o.Manifest.Groups) {
		return nil, fmt.Errorf("client: %w: %d groups, the manifest has %d", connector.ErrLayout, len(layout.Groups), len(o.Manifest.Groups))
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
			return nil, fmt.Errorf("client: region %d: %w", i, err)
		}
		sizes[i] = info.Size()
		mem, err := unix.Mmap(int(f.Fd()), 0, int(sizes[i]), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, fmt.Errorf("client: map region %d: %w", i, err)
		}
		s.regions = append(s.regions, mem)
	}
	if err := layout.Validate(sizes); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return s, nil
}

func (s *stager) unmapRegions() {
	for _, mem := range s.regions {
		_ = unix.Munmap(mem)
	}
	s.regions = nil
}

// start copies a load in the background. It calls report once, unless it returns false:
// then it has done nothing. refresh looks for a newer staging memory.
func (s *stager) start(l *connector.RequestLoad, refresh func(), report func(connector.FinishedLoad)) bool {
	j := s.plan(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.jobs[j.request] = j
	go func() {
		failed := s.run(j, refresh)
		if len(failed) > 0 {
			s.logger.Error("staged blocks are not what was offered: the engine must not use them",
				"request", j.request, "failed", len(failed), "blocks", len(j.blocks)+len(j.failed), "canceled", j.canceled.Load())
		}
		report(connector.FinishedLoad{Request: j.request, FailedBlocks: failed})
		s.mu.Lock()
		if s.jobs[j.request] == j {
			delete(s.jobs, j.request)
		}
		s.mu.Unlock()
		close(j.done)
	}()
	return true
}

// plan lists what this rank copies of a load.
func (s *stager) plan(l *connector.RequestLoad) *stagedJob {
	j := &stagedJob{request: l.Request, failed: slices.Clone(l.Lost), done: make(chan struct{})}
	for i := range l.Transfers {
		t := &l.Transfers[i]
		if t.Group >= len(s.layout.Groups) {
			j.fail(t)
			continue
		}
		shard, ok := s.manifest.Shard(s.rank, t.Group)
		if !ok {
			continue
		}
		staged := stagedBlocks(t, shard)
		g := &s.layout.Groups[t.Group]
		if staged == nil {
			j.fail(t)
			continue
		}
		for k := range t.Blocks {
			if slot := t.Blocks[k].Slot; slot >= g.Blocks {
				j.failed = append(j.failed, slot)
			} else {
				j.blocks = append(j.blocks, stagedCopy{group: g, slot: slot, from: staged[k]})
				j.bytes += g.BlockBytes()
			}
		}
	}
	return j
}

func (j *stagedJob) fail(t *connector.Transfer) {
	for i := range t.Blocks {
		j.failed = append(j.failed, t.Blocks[i].Slot)
	}
}

// stagedBlocks says where a shard's blocks lie, nil where that is not in the plan.
func stagedBlocks(t *connector.Transfer, shard connector.Shard) []connector.HandoffBlock {
	for i := range t.Handoff {
		if t.Handoff[i].Shard == shard && len(t.Handoff[i].Blocks) == len(t.Blocks) {
			return t.Handoff[i].Blocks
		}
	}
	return nil
}

// parallelBytes is the size from which a load is copied by more than one goroutine:
// smaller ones take less than a millisecond.
const parallelBytes = 8 << 20

// run copies all blocks, and returns those that failed.
func (s *stager) run(j *stagedJob, refresh func()) []uint32 {
	taken := s.stagings.take()
	failed := s.copyAll(j, j.blocks, taken)
	s.stagings.release(taken)
	if len(failed) > 0 && !j.canceled.Load() {
		// The plan may come from a daemon that this client has not met yet.
		refresh()
		again := s.stagings.take()
		if len(again) > 0 && (len(taken) == 0 || again[0] != taken[0]) {
			failed = s.copyAll(j, failed, again)
		}
		s.stagings.release(again)
	}
	out := j.failed
	for i := range failed {
		out = append(out, failed[i].slot)
	}
	return out
}

// copyAll copies blocks and returns those that failed.
func (s *stager) copyAll(j *stagedJob, blocks []stagedCopy, from []*staging) []stagedCopy {
	copiers := 1
	if j.bytes >= parallelBytes {
		copiers = min(runtime.GOMAXPROCS(0), len(blocks))
	}
	var (
		next   atomic.Int64
		mu     sync.Mutex
		failed []stagedCopy
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

// copyBlock copies a block from the first staging memory that has it.
func (s *stager) copyBlock(b *stagedCopy, from []*staging, sum *xxh3.Hasher) bool {
	size := uint64(b.group.BlockBytes())
	for _, st := range from {
		if all := uint64(len(st.mem)); size > all || b.from.Offset > all-size {
			continue
		}
		sum.Reset()
		s.scatter(b, st.mem[b.from.Offset:][:size], sum)
		if sum.Sum64() == b.from.Sum {
			return true
		}
	}
	return false
}

// scatter copies a block's payload to its pieces, and sums up what it has written. The
// layout was validated and the slot is one of it, so that every piece lies in its region.
func (s *stager) scatter(b *stagedCopy, payload []byte, sum *xxh3.Hasher) {
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

// cancel has a request's load end early. The channel, nil where there is none, is closed
// when it has ended and reported what is missing as failed.
func (s *stager) cancel(request string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[request]
	if j == nil {
		return nil
	}
	j.canceled.Store(true)
	return j.done
}

func (s *stager) cancelAll() []<-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []<-chan struct{}
	for _, j := range s.jobs {
		j.canceled.Store(true)
		out = append(out, j.done)
	}
	return out
}

// close ends all loads and unmaps everything.
func (s *stager) close() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return
	}
	for _, done := range s.cancelAll() {
		<-done
	}
	s.unmapRegions()
	s.stagings.close()
}
