package cuda

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvconn/kvconn/gpu/copier"
	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/gpu/ring"
)

// errEnded means that the daemon ended a copier in order.
var errEnded = errors.New("the copier was ended")

// process is one run of a copier.
type process struct {
	// device is the GPU that it copies for.
	device *device

	cmd  *exec.Cmd
	conn *copier.Conn
	ring *ring.Ring
	// words are what it writes to its standard error: a message, or how it crashed.
	words firstWords

	// asking is held for one question and its answer.
	asking sync.Mutex
	next   uint32
	// submitting is held while a slot is handed to the copier.
	submitting sync.Mutex
	slots      [ring.Slots]slot
	free       chan int
	// pace bounds the saves in slots.
	pace pace

	mu  sync.Mutex
	why error
	// users are those who read or write the ring: it is unmapped after them.
	users  sync.WaitGroup
	closed bool
	// hurried is set once the daemon is to end: questions are answered within QuitTimeout from then on.
	hurried bool
	// kernelLost is set once it is known to have ended in a copy by kernel.
	kernelLost atomic.Bool
	// gone is closed once the process has gone, and nothing of it can write any more.
	gone chan struct{}
}

// slot is the daemon's side of a slot of the ring.
type slot struct {
	// outcome has one value for each batch that ended.
	outcome chan ring.Outcome
	timer   *time.Timer
	// busy is set from the submission to the end. submitting guards it.
	busy bool
}

// startProcess starts a copier and waits until its driver serves, unless none is wanted any more.
func startProcess(g *device) (*process, *copier.DeviceInfo, error) {
	p := &process{device: g, free: make(chan int, ring.Slots), gone: make(chan struct{})}
	for i := range p.slots {
		p.slots[i].outcome = make(chan ring.Outcome, 1)
		p.slots[i].timer = time.NewTimer(time.Hour)
		p.slots[i].timer.Stop()
		p.free <- i
	}
	if err := p.launch(); err != nil {
		return nil, nil, err
	}
	serves := make(chan struct{})
	defer close(serves)
	go p.afterQuit(serves)
	files := p.ring.Files()
	reply, err := p.ask(g.o.StartTimeout, &copier.Request{
		Op: copier.Start, Device: g.uuid, Library: g.o.Library, ArenaBytes: int64(len(g.arena.mem)),
	}, g.arena.file, files[0], files[1], files[2])
	if err == nil && reply.Device == nil {
		err = errors.New("the copier does not say what it serves")
	}
	if err != nil {
		p.end(err)
		<-p.gone
		return nil, nil, err
	}
	return p, reply.Device, nil
}

// afterQuit ends the process if it is being started when the driver is told to quit, and otherwise lets it answer
// within a short time only.
func (p *process) afterQuit(serves <-chan struct{}) {
	select {
	case <-p.device.quit:
	case <-p.gone:
		return
	}
	select {
	case <-serves:
		p.hurry()
	default:
		p.end(errEnded)
	}
}

// hurry shortens the wait for the answer under way, and for all later ones.
func (p *process) hurry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hurried = true
	_ = p.conn.Limit(min(p.device.o.OpenTimeout, p.device.o.QuitTimeout))
}

// limit bounds the next question. It returns the time that the copier has for it.
func (p *process) limit(timeout time.Duration) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hurried {
		timeout = min(timeout, p.device.o.QuitTimeout)
	}
	return timeout, p.conn.Limit(timeout)
}

// launch starts the process and what waits for it.
func (p *process) launch() (err error) {
	if p.ring, err = ring.New(); err != nil {
		return err
	}
	ours, theirs, err := copier.Pair()
	if err != nil {
		return errors.Join(err, p.ring.Close())
	}
	defer func() { _ = theirs.Close() }()
	o := p.device.o
	p.cmd = exec.Command(o.Command[0], append(slices.Clone(o.Command[1:]), p.device.uuid)...)
	if o.self {
		p.cmd.Path = "/proc/self/exe"
	}
	p.cmd.ExtraFiles = []*os.File{theirs}
	p.cmd.Stderr = &p.words
	p.cmd.WaitDelay = time.Second // for the words of a process that left a descriptor to another
	// A terminal's interrupt is for the daemon, which ends its copiers last. They end when their socket closes.
	// A copier that hangs or stands still does not see that: the kernel kills it when the daemon has died.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if p.conn, err = copier.NewConn(ours); err != nil {
		return errors.Join(err, p.ring.Close())
	}
	p.users.Add(1) // of reap
	started := make(chan error)
	go func() {
		// The kernel takes the end of the thread that started a process for the death of its parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.await()
		}
	}()
	if err = <-started; err != nil {
		return errors.Join(fmt.Errorf("start a copier: %w", err), p.conn.Close(), p.ring.Close())
	}
	go p.reap()
	return nil
}

// await waits for the end of the process, and then calls everything under way failed.
func (p *process) await() {
	err := p.cmd.Wait()
	if err == nil {
		err = errors.New("it ended by itself")
	}
	if line := p.words.line(); line != "" {
		err = fmt.Errorf("%w: %s", err, line)
	}
	p.note(fmt.Errorf("the copier has ended: %w", err))
	close(p.gone)
	_ = p.conn.Close()
	_ = p.ring.Wake()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.users.Wait()
	_ = p.ring.Close()
}

// pinned says how much of the arena the copier has locked, and why it could not lock more: nothing once it has gone.
func (p *process) pinned() (bytes int64, refused string) {
	if !p.enter() {
		return 0, ""
	}
	defer p.users.Done()
	bytes, code := p.ring.Pinned()
	if code != 0 {
		refused = libcuda.Code(code).String()
	}
	return min(max(bytes, 0), int64(len(p.device.arena.mem))), refused
}

// enter keeps the ring mapped until users.Done, and reports false if it is not mapped any more.
func (p *process) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.users.Add(1)
	}
	return !p.closed
}

// reap hands the outcomes of batches to those who wait for them.
func (p *process) reap() {
	defer p.users.Done()
	for p.ring.AwaitEnds() == nil {
		p.submitting.Lock()
		for i := range p.slots {
			s := &p.slots[i]
			if !s.busy {
				continue
			}
			if o, ended := p.ring.Batch(i).Outcome(); ended {
				s.busy = false
				s.outcome <- o
			}
		}
		p.submitting.Unlock()
		if p.ended() {
			return
		}
	}
}

// ended reports whether the process has gone.
func (p *process) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// end kills the process. Its end is told by gone.
func (p *process) end(why error) {
	p.note(why)
	_ = p.cmd.Process.Kill()
}

// note remembers the first reason.
func (p *process) note(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why == nil {
		p.why = why
	}
}

// cause is why the process ended.
func (p *process) cause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why
}

// errTimeout means that a copier did not answer in time.
var errTimeout = errors.New("the copier does not answer")

// ask asks the copier one question. A copier that does not answer in time is killed.
func (p *process) ask(timeout time.Duration, r *copier.Request, files ...*os.File) (*copier.Reply, error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	if p.ended() {
		return nil, p.lost()
	}
	var reply copier.Reply
	timeout, err := p.limit(timeout)
	if err == nil {
		err = p.conn.Send(r, files...)
	}
	if err == nil {
		var extra []*os.File
		extra, err = p.conn.Receive(&reply)
		copier.CloseAll(extra)
	}
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("%w within %s of %q", errTimeout, timeout, r.Op)
		}
		p.end(err)
		<-p.gone
		return nil, p.lost()
	}
	if reply.Error != "" {
		return nil, &ReplyError{Cause: reply.Cause, Text: reply.Error}
	}
	return &reply, nil
}

// ReplyError is what a copier answered.
type ReplyError struct {
	Cause copier.Cause
	Text  string
}

// Error is the copier's text.
func (e *ReplyError) Error() string { return e.Text }

// open has the copier open a rank's memory, and returns its number. connection may be nil.
func (p *process) open(files []*os.File, stream bool, connection *os.File) (uint32, error) {
	p.mu.Lock()
	p.next++
	number := p.next
	p.mu.Unlock()
	r := &copier.Request{Op: copier.Open, Memory: number, Stream: stream, Connection: connection != nil}
	if r.Connection {
		files = append(slices.Clone(files), connection)
	}
	_, err := p.ask(p.device.o.OpenTimeout, r, files...)
	return number, err
}
