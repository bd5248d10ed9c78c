package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/choice"
	"github.com/kvconn/kvconn/gpu/copier"
	"github.com/kvconn/kvconn/gpu/ring"
)

// device is one GPU and its copier, the present one of several in turn.
type device struct {
	o     *Options
	uuid  string
	arena arena
	// place is where the arena's memory comes from.
	place *placement
	// quit is closed once no copier is to be started any more.
	quit <-chan struct{}

	// starting is held while a copier is started, mu only for a moment.
	starting sync.Mutex
	mu       sync.Mutex
	current  *process
	// noted is closed once the end of the current process is noted.
	noted    chan struct{}
	info     copier.DeviceInfo
	starts   uint64
	lastErr  error
	pause    time.Duration
	notUntil time.Time
	closed   bool

	// learnt is which way of copying is faster. It outlives copiers.
	learnt choice.Table
	// batches and copied, bytes by direction, count what ended well.
	batches atomic.Uint64
	copied  [2]atomic.Uint64
	// byKernel of the batches had their runs moved by a kernel.
	byKernel atomic.Uint64
}

// note counts a batch that ended well and was wanted in a way, and learns from it.
func (g *device) note(d gpu.Direction, runs int, bytes uint64, wanted choice.Way, o ring.Outcome) {
	g.batches.Add(1)
	g.copied[d].Add(bytes)
	way := choice.Batch
	if o.Kernel {
		way = choice.Kernel
		g.byKernel.Add(1)
	}
	if way != wanted {
		g.learnt.Refused(uint8(d), runs, bytes)
	}
	g.learnt.Learn(uint8(d), runs, bytes, way, o.Nanoseconds)
}

// errKernelLost is why kernels are given up.
const errKernelLost = "copiers ended in copies by kernel: they are not tried again until kvconnd is restarted"

// kernelLost counts a copier that has ended while it copied by kernel, once whatever number of such copies it had.
func (g *device) kernelLost(p *process) {
	if p.kernelLost.CompareAndSwap(false, true) && g.learnt.Lost() {
		g.o.Logger.Warn("GPU copies by kernel are given up", "uuid", g.uuid, "why", errKernelLost, "err", p.cause())
	}
}

// copier returns the running copier, and starts one if there is none.
func (g *device) copier() (*process, error) {
	g.starting.Lock()
	defer g.starting.Unlock()
	g.mu.Lock()
	current, noted := g.current, g.noted
	g.mu.Unlock()
	if current != nil && current.ended() {
		<-noted // it says how long to wait
	}
	g.mu.Lock()
	lastErr, wait, closed := g.lastErr, time.Until(g.notUntil), g.closed
	g.mu.Unlock()
	switch {
	case closed:
		return nil, errEnded
	case current != nil && !current.ended():
		return current, nil
	case wait > 0:
		return nil, again(fmt.Errorf("it is started again in %s: %w", wait.Round(time.Millisecond), lastErr))
	}
	select {
	case <-g.quit:
		return nil, errEnded
	default:
	}
	started := time.Now()
	p, info, err := startProcess(g)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.starts++
	if err != nil {
		g.backOff(err)
		return nil, again(err)
	}
	g.place.use(g.arena.mem, info.NUMANode, g.o.Logger) // the copier locks all of it from its first registration on
	g.current, g.info, g.lastErr = p, *info, nil
	noted = make(chan struct{})
	g.noted = noted
	g.o.Logger.Info("GPU copier started", "gpu", info.Name, "uuid", info.UUID, "driver", info.Driver,
		"pid", p.cmd.Process.Pid, "took", time.Since(started).Round(time.Millisecond))
	if info.KernelError != "" {
		g.o.Logger.Warn("GPU copier without copy kernels: many small runs are copied one by one", "uuid", info.UUID, "err", info.KernelError)
	}
	go func() {
		defer close(noted)
		g.watch(p, started)
	}()
	return p, nil
}

// again is the error of a copier that does not run, with gpu.ErrAgain unless waiting is of no use: there is no driver, or
// no such GPU.
func again(err error) error {
	var answer *ReplyError
	if errors.As(err, &answer) && (answer.Cause == copier.CauseDriver || answer.Cause == copier.CauseDevice) {
		return err
	}
	return fmt.Errorf("%w: %w", gpu.ErrAgain, err)
}

// watch notes the end of a copier.
func (g *device) watch(p *process, started time.Time) {
	<-p.gone
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	if time.Since(started) > g.o.RestartPauseMax {
		g.pause, g.lastErr = 0, p.cause() // the next one starts at once
	} else {
		g.backOff(p.cause())
	}
	g.o.Logger.Warn("GPU copier ended: its engines' ranks register again", "uuid", g.uuid, "err", p.cause())
}

// backOff sets when the next copier may be started. mu is held.
func (g *device) backOff(err error) {
	g.pause = min(max(2*g.pause, g.o.RestartPause), g.o.RestartPauseMax)
	g.notUntil = time.Now().Add(g.pause)
	g.lastErr = err
}

// retire closes a device that has never served, and is not being started. It reports whether it did.
func (g *device) retire() bool {
	if !g.starting.TryLock() {
		return false
	}
	defer g.starting.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.current != nil || g.starts == 0 {
		return false
	}
	g.closed = true
	return true
}

func (g *device) close() {
	g.starting.Lock()
	defer g.starting.Unlock()
	g.mu.Lock()
	g.closed = true
	p := g.current
	g.mu.Unlock()
	if p != nil {
		p.end(errEnded)
		<-p.gone
	}
}

func (g *device) status() gpu.DeviceStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := gpu.DeviceStatus{
		UUID: g.uuid, Name: g.info.Name, Driver: g.info.Driver, NUMANode: g.info.NUMANode, FreeBytes: g.info.FreeBytes,
		TotalBytes: g.info.TotalBytes, Running: g.current != nil && !g.current.ended(), Starts: g.starts,
		Batches: g.batches.Load(), LoadedBytes: g.copied[gpu.Load].Load(), SavedBytes: g.copied[gpu.Save].Load(),
		KernelBatches: g.byKernel.Load(), KernelError: g.info.KernelError,
	}
	if g.learnt.Ended() {
		s.KernelError = errKernelLost
	}
	for _, l := range g.learnt.Learnt() {
		s.Copies = append(s.Copies, gpu.CopyStatus{
			Direction: gpu.Direction(l.Direction).String(), RunBytes: l.RunBytes, Runs: l.Runs, By: l.Best.String(),
			BatchBytesPerS: l.BatchBytesPerS, KernelBytesPerS: l.KernelBytesPerS,
		})
	}
	if g.current != nil {
		s.PinnedBytes, s.PinError = g.current.pinned()
	}
	if g.lastErr != nil {
		s.LastError = g.lastErr.Error()
	}
	return s
}
