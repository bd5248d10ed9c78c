package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvconn/kvconn/internal/daemon"
)

const (
	// startTimeout bounds the start of a child; a loaded machine may take its time.
	startTimeout = 30 * time.Second
	// stopTimeout is how long a child may take to stop before it is killed.
	// The daemon gives itself 25 s.
	stopTimeout = 40 * time.Second
)

// process is a child that dies with this process.
type process struct {
	name string
	cmd  *exec.Cmd
	log  *tail
	done chan struct{}
	err  error
}

// tail keeps the end of what a child logs, for error messages.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if n := len(t.buf) - tailBytes; n > 0 {
		t.buf = append(t.buf[:0], t.buf[n:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.buf))
}

func newProcess(name, executable string, args ...string) *process {
	p := &process{name: name, cmd: exec.Command(executable, args...), log: new(tail), done: make(chan struct{})}
	p.cmd.Env = ownEnvironment(os.Environ())
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p
}

// ownEnvironment leaves out the settings of another daemon of the user, and of a service
// manager that may wait for it: the demo's children are configured by flags alone.
func ownEnvironment(environ []string) []string {
	return slices.DeleteFunc(environ, func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		setting := strings.HasPrefix(name, "KVCONN_") && !strings.HasPrefix(name, "KVCONN_TEST_")
		return setting || name == "NOTIFY_SOCKET" || strings.HasPrefix(name, "WATCHDOG_")
	})
}

// start runs the child until it stops.
func (p *process) start() error {
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start the %s: %w", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return nil
}

// stop asks the child to end, and kills it if it does not.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("the %s did not stop within %s", p.name, stopTimeout)
	}
	if p.err != nil {
		return p.failure(p.err)
	}
	return nil
}

// failure says what the child logged last.
func (p *process) failure(err error) error {
	return fmt.Errorf("the %s failed: %w\n%s", p.name, err, p.log)
}

// daemonProcess is `kvconnd serve`.
type daemonProcess struct {
	*process
	http string
}

// startDaemon runs a daemon and waits until it is ready.
func startDaemon(ctx context.Context, o *Options, dir, socket string) (*daemonProcess, error) {
	// The demo writes little and removes it, so it may run on a nearly full disk.
	p := newProcess("daemon", o.Executable, "serve", "--dir", dir, "--socket", socket, "--http", "127.0.0.1:0",
		"--max-bytes", "1GiB", "--min-free", "64MiB")
	if err := p.start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		select {
		case <-p.done:
			return nil, p.failure(errors.Join(errors.New("ended before it was ready"), p.err))
		case <-ctx.Done():
			_ = p.stop()
			return nil, p.failure(ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	info, err := daemon.ReadInfo(dir)
	if err != nil {
		_ = p.stop()
		return nil, err
	}
	return &daemonProcess{process: p, http: info.HTTP}, nil
}

// engineProcess is the built-in engine.
type engineProcess struct {
	*process
	in  io.WriteCloser
	out *bufio.Scanner
}

// startEngine runs an engine and waits until it is ready.
func startEngine(o *Options, socket string, prefixCaching bool) (*engineProcess, error) {
	args := append(strings.Fields(o.EngineCommand), "--socket", socket)
	if prefixCaching {
		args = append(args, "--prefix-caching")
	}
	p := newProcess("engine", o.Executable, args...)
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	// Wait closes the pipe, so it must not be called before all was read: the scanner
	// notices the end.
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	e := &engineProcess{process: p, in: in, out: bufio.NewScanner(out)}
	e.out.Buffer(nil, maxLine)
	if c, err := e.read(); err != nil || !c.Ready {
		_ = e.stop()
		return nil, p.failure(errors.Join(errors.New("not ready"), err))
	}
	return e, nil
}

// stop ends the engine's input, at which it ends.
func (e *engineProcess) stop() error {
	_ = e.in.Close()
	kill := time.AfterFunc(stopTimeout, func() { _ = e.cmd.Process.Kill() })
	defer kill.Stop()
	if err := e.cmd.Wait(); err != nil {
		return e.failure(err)
	}
	return nil
}

// complete has one prompt completed.
func (e *engineProcess) complete(p prompt) (*completion, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	if _, err := e.in.Write(append(b, '\n')); err != nil {
		return nil, e.failure(err)
	}
	c, err := e.read()
	if err != nil {
		return nil, e.failure(err)
	}
	if c.Error != "" {
		return nil, fmt.Errorf("the engine cannot serve %s: %s", p.ID, c.Error)
	}
	return c, nil
}

func (e *engineProcess) read() (*completion, error) {
	if !e.out.Scan() {
		return nil, errors.Join(io.ErrUnexpectedEOF, e.out.Err())
	}
	c := new(completion)
	if err := json.Unmarshal(e.out.Bytes(), c); err != nil {
		return nil, fmt.Errorf("answer of the engine: %w", err)
	}
	return c, nil
}
