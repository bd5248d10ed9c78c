package cuda

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/copier"
)

// device is one GPU and its copier, the present one of several in turn.
type device struct {
	o     *Options
	uuid  string
	arena arena
	// quit is closed once no copier is to be started any more.
	quit <-chan struct{}

	// starting is held while a copier is started, mu only for a moment.
	starting sync.Mutex
	mu       sync.Mutex
	current  *process
	info     copier.DeviceInfo
	starts   uint64
	lastErr  error
	pause    time.Duration
	notUntil time.Time
	closed   bool

	// batches and copied, bytes by direction, count what ended well.
	batches atomic.Uint64
	copied  [2]atomic.Uint64
}

// copier returns the running copier, and starts one if there is none.
func (g *device) copier() (*process, error) {
	g.starting.Lock()
	defer g.starting.Unlock()
	g.mu.Lock()
	current, lastErr, wait := g.current, g.lastErr, time.Until(g.notUntil)
	closed := g.closed
	g.mu.Unlock()
	switch {
	case closed:
		return nil, errEnded
	case current != nil && !current.ended():
		return current, nil
	case wait > 0:
		return nil, fmt.Errorf("it is started again in %s: %w", wait.Round(time.Millisecond), lastErr)
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
		return nil, err
	}
	g.current, g.info, g.lastErr = p, *info, nil
	g.o.Logger.Info("GPU copier started", "gpu", info.Name, "uuid", info.UUID, "driver", info.Driver,
		"pid", p.cmd.Process.Pid, "took", time.Since(started).Round(time.Millisecond))
	go g.watch(p, started)
	return p, nil
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
	}
	if g.lastErr != nil {
		s.LastError = g.lastErr.Error()
	}
	return s
}
