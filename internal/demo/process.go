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
	log  string        // the file that it logs to
	end  func() error  // asks it to end
	done chan struct{} // closed when it has ended, with err
	err  error
}

// tailBytes is how much of a child's log an error shows.
const tailBytes = 8 << 10

// start runs a child until it stops; prepare may change how.
func (r *runner) start(name string, prepare func(*process) error, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(r.o.Executable, args...), log: r.socket + "." + name, done: make(chan struct{})}
	p.end = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.Env = append(ownEnvironment(os.Environ()), r.environ...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p.cmd.Stderr = log
	if err = prepare(p); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the %s: %w", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// ownEnvironment leaves out the settings of another daemon of the user, their credentials for S3, and
// what a service manager that may wait for it has set: the demo's children are configured by the demo alone.
func ownEnvironment(environ []string) []string {
	return slices.DeleteFunc(environ, func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		setting := strings.HasPrefix(name, "KVCONN_") && !strings.HasPrefix(name, "KVCONN_TEST_")
		return setting || isAWS(name) || name == "NOTIFY_SOCKET" || strings.HasPrefix(name, "WATCHDOG_")
	})
}

// stop asks the child to end, and kills it if it does not.
func (p *process) stop() error {
	_ = p.end() // it may have ended
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

func (p *process) failure(err error) error {
	log, _ := os.ReadFile(p.log)
	return fmt.Errorf("the %s failed: %w\n%s", p.name, err, bytes.TrimSpace(log[max(0, len(log)-tailBytes):]))
}

// daemonProcess is `kvconnd serve`.
type daemonProcess struct {
	*process
	http string
}

// startDaemon runs a daemon and waits until it is ready.
func (r *runner) startDaemon(ctx context.Context) (*daemonProcess, error) {
	// The demo writes little and removes it, so it may run on a nearly full disk.
	args := []string{"serve", "--dir", r.dir, "--socket", r.socket, "--http", "127.0.0.1:0", "--max-bytes", "1GiB", "--min-free", "64MiB"}
	p, err := r.start("daemon", func(*process) error { return nil }, append(args, r.serve...)...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if _, err := os.Stat(r.socket); err == nil {
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
	info, err := daemon.ReadInfo(r.dir)
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
func (r *runner) startEngine(prefixCaching bool) (*engineProcess, error) {
	args := []string{"demo-engine", "--socket", r.socket}
	if prefixCaching {
		args = append(args, "--prefix-caching")
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	e := &engineProcess{out: bufio.NewScanner(out)}
	e.out.Buffer(nil, maxLine)
	e.process, err = r.start("engine", func(p *process) (err error) {
		p.cmd.Stdout = childOut
		e.in, err = p.cmd.StdinPipe()
		p.end = func() error { return e.in.Close() }
		return err
	}, args...)
	_ = childOut.Close()
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	if c, err := e.read(); err != nil || !c.Ready {
		_ = e.stop()
		return nil, e.failure(errors.Join(errors.New("not ready"), err))
	}
	return e, nil
}

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
