package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// node is a machine: a store directory and a socket, with a daemon or without.
type node struct {
	t           *testing.T
	dir, socket string
	args        []string
	// environ has variables for the daemon alone.
	environ []string
	cmd     *exec.Cmd
	log     *testlog.Text
	// local is the daemon, if it runs in this process.
	local *localDaemon
}

func newNode(t *testing.T, args ...string) *node {
	t.Helper()
	return newNodeIn(t, t.TempDir(), args...)
}

// newMemoryNode is a node whose disk is memory, where there is such a disk: for tests with
// many starts, which would all wait for the disk.
func newMemoryNode(t *testing.T, args ...string) *node {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kvconn-integration-")
	if err != nil {
		return newNode(t, args...)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return newNodeIn(t, dir, args...)
}

func newNodeIn(t *testing.T, dir string, args ...string) *node {
	t.Helper()
	n := &node{t: t, dir: filepath.Join(dir, "store"), socket: filepath.Join(dir, "s"), args: args, log: new(testlog.Text)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", n.log)
		}
		if n.cmd != nil {
			n.kill()
		}
		if n.local != nil {
			n.local.cancel()
			n.local.wait(t)
		}
	})
	return n
}

// command is `kvconnd serve` for this node.
func (n *node) command() *exec.Cmd {
	n.t.Helper()
	path, err := daemonBinary()
	if err != nil {
		n.t.Fatal(err)
	}
	// The daemon waits for a read as long as it takes: what a slow machine does not bring in
	// time is not offered, or fails, which is right, and no test. A cap below 256 MiB has no room for
	// measuring the disk of a new store, which takes a second; the demo's has.
	args := append([]string{
		"serve", "--dir", n.dir, "--socket", n.socket, "--http", "127.0.0.1:0",
		"--max-bytes", "192MiB", "--min-free", "0", "--host-bytes", "64MiB", "--stage-timeout", "10s", "--load-timeout", "60s",
	}, n.args...)
	cmd := exec.Command(path, args...)
	cmd.Env = append(daemonEnviron(), n.environ...)
	return cmd
}

// start runs the daemon and waits until it serves. The socket of a killed one is left to
// it to replace.
func (n *node) start() {
	n.t.Helper()
	n.launch(n.command())
	n.waitReady()
}

// launch starts a daemon's process, which dies with this one.
func (n *node) launch(cmd *exec.Cmd) {
	n.t.Helper()
	n.cmd, n.log = cmd, new(testlog.Text)
	n.cmd.Stderr = n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
}

// waitReady waits until this daemon, and no other, answers on the socket.
func (n *node) waitReady() {
	n.t.Helper()
	n.wait("the daemon's socket", func() bool {
		if n.ended() {
			n.t.Fatal("the daemon has ended")
		}
		info, err := daemon.ReadInfo(n.dir)
		if err != nil || info.PID != n.cmd.Process.Pid {
			return false
		}
		c, err := net.Dial("unix", n.socket)
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
}

// ended says whether the daemon's process is over, though nobody has waited for it yet.
func (n *node) ended() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.cmd.Process.Pid))
	if err != nil {
		return true
	}
	_, state, ok := strings.Cut(string(stat), ") ")
	return ok && strings.HasPrefix(state, "Z")
}

// wait waits until cond holds.
func (n *node) wait(what string, cond func() bool) {
	n.t.Helper()
	wait.For(n.t, what, cond)
}

// kill ends the daemon with SIGKILL.
func (n *node) kill() {
	n.t.Helper()
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
	n.cmd = nil
}

// stop ends the daemon in order.
func (n *node) stop() {
	n.t.Helper()
	if n.local != nil {
		n.local.cancel()
		n.local.wait(n.t)
		n.local = nil
		return
	}
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	if err := n.cmd.Wait(); err != nil {
		n.t.Fatalf("stop: %v", err)
	}
	n.cmd = nil
}

func (n *node) status() (s *daemon.Status) {
	n.t.Helper()
	info, err := daemon.ReadInfo(n.dir)
	if err != nil {
		n.t.Fatal(err)
	}
	n.wait("the daemon's status", func() bool {
		// A machine that is busy may keep the answer back for longer than a person waits.
		if s, err = daemon.FetchStatus(n.t.Context(), info.HTTP); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			n.t.Fatal(err)
		}
		return err == nil
	})
	return s
}

// saved waits until what was accepted is written.
func (n *node) saved() {
	n.t.Helper()
	n.wait("all saves to be written", func() bool { return n.status().Store.WriteInFlightBytes == 0 })
}

// waitDurable waits until everything that was saved has passed a barrier. One that is under
// way may have begun before the last write: the second from now on counts. There are barriers
// only while there is something to make durable: e saves more until then.
func (n *node) waitDurable(e *instance) {
	n.t.Helper()
	n.saved()
	barriers := func() uint64 { return n.status().Store.Barriers }
	begun := barriers()
	for round := 0; barriers() < begun+2; round++ {
		before := barriers()
		e.run(fmt.Sprint("for a barrier ", round), prompts(9000+round, 1))
		n.wait("a barrier", func() bool { return barriers() > before })
	}
}

// waitLetGo waits until the daemon keeps nothing of engines that are gone, and says what
// it keeps otherwise.
func (n *node) waitLetGo() {
	n.t.Helper()
	n.wait("the daemon to let go of all engines", func() bool {
		s := n.status()
		return len(s.Engines)+len(s.Ranks)+s.Store.Leases+s.Queues.LoadsInFlight == 0 && s.Host.UsedBytes == 0 && s.Host.Accounts == 0
	})
	if n.cmd == nil {
		return
	}
	// Sessions leave the status first; their descriptors are closed after that, by whoever
	// waited on them.
	left := ""
	n.t.Cleanup(func() {
		if left != "" {
			n.t.Logf("of dead engines are left: %s", left)
		}
	})
	n.wait("nothing of dead engines is left", func() bool {
		left = n.leftovers()
		return left == ""
	})
}

// leftovers says what the daemon's process still has open or mapped of engines.
func (n *node) leftovers() string {
	n.t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", n.cmd.Process.Pid))
	if err != nil {
		n.t.Fatal(err)
	}
	if c := strings.Count(string(maps), "memfd:") - strings.Count(string(maps), "memfd:kvconn-host"); c != 0 {
		return fmt.Sprintf("%d mappings of their memory", c)
	}
	// The host tier's own memory has two: the one that engines which copy for themselves are given can be read alone.
	if c := descriptors(n.t, n.cmd.Process.Pid); c["memfd:kvconn-host"] > 2 || c["memfd"]+c["pidfd"] > 0 {
		return fmt.Sprintf("descriptors %v", c)
	}
	return ""
}

// descriptors counts a process's descriptors by kind.
func descriptors(t *testing.T, pid int) map[string]int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[string]int)
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		switch {
		case strings.HasPrefix(target, "/memfd:kvconn-host"):
			count["memfd:kvconn-host"]++
		case strings.HasPrefix(target, "/memfd:"):
			count["memfd"]++
		case strings.Contains(target, "pidfd"):
			count["pidfd"]++
		case strings.HasPrefix(target, "socket:"):
			count["socket"]++
		default:
			count["other"]++
		}
	}
	return count
}

// localDaemon is a daemon in this process, for what cannot be done to one in another:
// disks that fail as told.
type localDaemon struct {
	cancel context.CancelFunc
	done   chan error
}

// serve runs the daemon in this process until stop.
func (n *node) serve(change func(*daemon.Options)) {
	n.t.Helper()
	ready := make(chan struct{})
	o := daemon.Options{
		Dir: n.dir, Socket: n.socket, HTTP: "127.0.0.1:0", MaxBytes: 64 << 20, HostBytes: 64 << 20,
		StageTimeout: 10 * time.Second, LoadTimeout: waitLimit,
		Ready: func(daemon.Info) { close(ready) },
	}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.local = &localDaemon{cancel: cancel, done: make(chan error, 1)}
	local := n.local
	go func() {
		local.done <- daemon.Run(ctx, o)
	}()
	select {
	case <-ready:
	case err := <-local.done:
		n.local = nil
		n.t.Fatalf("the daemon ended: %v", err)
	case <-time.After(waitLimit):
		n.t.Fatal("the daemon is not ready")
	}
}

// wait waits for the daemon's end. One whose disk hangs may not end in order.
func (l *localDaemon) wait(t *testing.T) {
	t.Helper()
	select {
	case err := <-l.done:
		if err != nil && !errors.Is(err, daemon.ErrStopTimeout) {
			t.Errorf("stop: %v", err)
		}
	case <-time.After(waitLimit):
		t.Error("the daemon does not stop")
	}
}
