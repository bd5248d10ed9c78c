package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/locate"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// pseudoTerminal is a terminal of 80 by 24 for a command; what the command writes can be read.
type pseudoTerminal struct {
	master, tty *os.File
	mu          sync.Mutex
	written     bytes.Buffer
}

func openTerminal(t *testing.T) *pseudoTerminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	p := &pseudoTerminal{master: master, tty: tty}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			p.mu.Lock()
			p.written.Write(b[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

func (p *pseudoTerminal) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.written.String()
}

const enterScreen, leaveScreen = "\x1b[?1049h", "\x1b[?1049l"

// awaitLeft waits until the terminal is as it was: its own screen, and lines as they were read before.
func (p *pseudoTerminal) awaitLeft(t *testing.T, before *unix.Termios) {
	t.Helper()
	wait.For(t, "the way back from the alternate screen", func() bool {
		return strings.Count(p.text(), enterScreen) == 1 && strings.Count(p.text(), leaveScreen) == 1
	})
	if after, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS); err != nil || *after != *before {
		t.Errorf("the terminal's modes are %+v, %v; were %+v", after, err, before)
	}
}

func (p *pseudoTerminal) modes(t *testing.T) *unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTopFillsTheTerminalAndLeavesItAsItWas(t *testing.T) {
	for name, end := range map[string]func(p *pseudoTerminal) error{
		"key":    func(p *pseudoTerminal) error { _, err := p.master.WriteString("q"); return err },
		"signal": func(*pseudoTerminal) error { return syscall.Kill(os.Getpid(), syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			addr := serveStatus(t, func() {}, exampleStatus(10), exampleStatus(12), exampleStatus(14))
			p := openTerminal(t)
			before := p.modes(t)
			var errs bytes.Buffer
			ended := make(chan int, 1)
			go func() {
				ended <- run([]string{"top", "--http", addr, "--interval", "1h"}, &terminal.Streams{In: p.tty, Out: p.tty, Err: &errs})
			}()
			wait.For(t, "a look", func() bool {
				return strings.Contains(p.text(), "kvconnd/1.2.3") && strings.Contains(p.text(), "q quit")
			})
			if err := end(p); err != nil {
				t.Fatal(err)
			}
			if status := <-ended; status != 0 || errs.Len() > 0 {
				t.Errorf("status %d, %q", status, errs.String())
			}
			p.awaitLeft(t, before)
		})
	}
}

// Where nobody can press a key there is one look, for a script or a file.
func TestTopWithoutATerminalIsOneLook(t *testing.T) {
	addr := serveStatus(t, func() {}, exampleStatus(10))
	status, out, errs := kvconnd("top", "--http", addr, "--dir", t.TempDir()) // the address wins
	if status != 0 || !strings.Contains(out, "kvconnd/1.2.3") || strings.Contains(out, "\x1b") || !strings.Contains(errs, "needs a terminal") {
		t.Errorf("status %d, %q\n%s", status, errs, out)
	}
	if status, _, errs := kvconnd("top", "--http", "127.0.0.1:1"); status == 0 || !strings.Contains(errs, "refused") {
		t.Errorf("without a daemon: status %d, %q", status, errs)
	}
	if status, _, errs := kvconnd("top", "--interval", "1ms"); status == 0 || !strings.Contains(errs, "at least 100ms") {
		t.Errorf("interval: status %d, %q", status, errs)
	}
}

func TestWatchUsesTheAlternateScreen(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	addr := serveStatus(t, func() {}, exampleStatus(10), exampleStatus(12), exampleStatus(14))
	p := openTerminal(t)
	before := p.modes(t)
	c := statusCmd{Watch: true, Interval: minWatchInterval}
	ended := make(chan error, 1)
	go func() { ended <- c.watch(ctx, locate.Settings{HTTP: addr}, p.tty) }()
	wait.For(t, "a look", func() bool { return strings.Contains(p.text(), "kvconnd/1.2.3") })
	if text := p.text(); !strings.HasPrefix(text, enterScreen) || strings.Contains(text, leaveScreen) {
		t.Errorf("%q", text)
	}
	cancel() // as a signal does
	if err := <-ended; err != nil {
		t.Error(err)
	}
	p.awaitLeft(t, before)
	if text := p.text(); !strings.HasSuffix(text, leaveScreen) || !strings.Contains(text, "\x1b[?25h") {
		t.Errorf("%q", text)
	}
}
