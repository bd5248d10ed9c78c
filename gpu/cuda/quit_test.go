package cuda

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/region"
)

// freeze has a process stand still.
func freeze(t *testing.T, p *process) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitTrue(t, "all its threads stand still", func() bool { return stopped(t, p.cmd.Process.Pid) })
}

// The deadlines are far longer than the test may take: without its end the copier would be waited for by them.
func TestAFrozenCopierDoesNotHoldTheDaemonsEnd(t *testing.T) {
	longer := func(o *Options) {
		o.OpenTimeout, o.CopyTimeout, o.QuitTimeout = time.Hour, time.Hour, 50*time.Millisecond
	}
	ask := func(t *testing.T, _ *rig, m gpu.Memory) error { return m.Close() }
	copies := func(t *testing.T, r *rig, m gpu.Memory) error {
		err := m.Copy(t.Context(), &gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}})
		if !errors.Is(err, gpu.ErrLost) || !errors.Is(err, errTimeout) {
			t.Errorf("a copy: %v", err)
		}
		return nil
	}
	for name, under := range map[string]func(*testing.T, *rig, gpu.Memory) error{"close": ask, "copy": copies} {
		for _, before := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " after the end is asked", false: " when the end is asked"}[before], func(t *testing.T) {
				t.Parallel()
				r, e := newRig(t, longer), startEngine(t, 0)
				m := r.open(e.region(region.IPC, granularity))
				p := copierOf(t, r)
				freeze(t, p)
				ended := make(chan error, 1)
				if before {
					r.Quit()
				}
				go func() { ended <- under(t, r, m) }()
				if !before {
					awaitTrue(t, "it is under way", func() bool { return p.asks() || p.copies() })
					r.Quit()
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if !p.ended() {
					t.Error("the copier has not gone")
				}
			})
		}
	}
}

// asks reports whether a question is under way.
func (p *process) asks() bool {
	if p.asking.TryLock() {
		p.asking.Unlock()
		return false
	}
	return true
}

// copies reports whether a batch is under way.
func (p *process) copies() bool {
	p.submitting.Lock()
	defer p.submitting.Unlock()
	for i := range p.slots {
		if p.slots[i].busy {
			return true
		}
	}
	return false
}

// What is open stays so once the driver is told to quit: engines' copies end in order.
func TestACopierServesWhatIsOpenAfterQuit(t *testing.T) {
	r, e := newRig(t, nil), startEngine(t, 0)
	m := r.open(e.region(region.IPC, granularity))
	r.Quit()
	if err := exercise(t, r, e, m); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil || copierOf(t, r).ended() {
		t.Errorf("%v, or the copier has gone", err)
	}
}

// The engine's device may never come to a call, and the copier that would copy for it may end first.
func TestAWaitForACallEndsWithItsCopier(t *testing.T) {
	r, e := newRig(t, nil), startEngine(t, 0)
	m := r.open(e.region(region.IPC, granularity))
	var looked atomic.Bool
	b := gpu.Batch{Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}, AfterCall: 1, Reached: func() uint64 {
		looked.Store(true)
		return 0
	}}
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the test's only
	defer cancel()
	go func() { ended <- m.Copy(ctx, &b) }()
	awaitTrue(t, "the call is awaited", looked.Load)
	copierOf(t, r).end(errEnded)
	if err := <-ended; !errors.Is(err, gpu.ErrLost) || !errors.Is(err, gpu.ErrAgain) {
		t.Errorf("%v", err)
	}
}
