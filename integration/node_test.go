package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/daemon"
	"github.com/kvconn/kvconn/engine"
	"github.com/kvconn/kvconn/engine/model"
)

// waitLimit bounds every wait of a test; only a broken program reaches it.
const waitLimit = 60 * time.Second

// binary is the daemon, built once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kvconn-integration-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kvconnd")
	out, err := exec.Command("go", slices.Concat([]string{"build"}, buildFlags(), []string{"-o", path, "../cmd/kvconnd"})...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build kvconnd: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// node is a machine: a store directory and a socket, with a daemon or without.
type node struct {
	t           *testing.T
	dir, socket string
	args        []string
	cmd         *exec.Cmd
	log         *strings.Builder
}

func newNode(t *testing.T, args ...string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{t: t, dir: filepath.Join(dir, "store"), socket: filepath.Join(dir, "s"), args: args}
	t.Cleanup(func() {
		if n.cmd != nil {
			n.kill()
		}
	})
	return n
}

// command is `kvconnd serve` for this node.
func (n *node) command() *exec.Cmd {
	n.t.Helper()
	path, err := binary()
	if err != nil {
		n.t.Fatal(err)
	}
	args := append([]string{"serve", "--dir", n.dir, "--socket", n.socket, "--http", "127.0.0.1:0", "--max-bytes", "256MiB"}, n.args...)
	return exec.Command(path, args...)
}

// start runs the daemon and waits until it serves. The socket of a killed one is left to
// it to replace.
func (n *node) start() {
	n.t.Helper()
	n.cmd, n.log = n.command(), new(strings.Builder)
	n.cmd.Stderr = n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.waitReady()
}

// waitReady waits until this daemon, and no other, answers on the socket.
func (n *node) waitReady() {
	n.t.Helper()
	n.wait("the daemon's socket", func() bool {
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

// wait polls until cond holds.
func (n *node) wait(what string, cond func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(waitLimit); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("waited %s for %s; the daemon's log:\n%s", waitLimit, what, n.log)
		}
	}
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
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	if err := n.cmd.Wait(); err != nil {
		n.t.Fatalf("stop: %v; the daemon's log:\n%s", err, n.log)
	}
	n.cmd = nil
}

func (n *node) status() *daemon.Status {
	n.t.Helper()
	info, err := daemon.ReadInfo(n.dir)
	if err != nil {
		n.t.Fatal(err)
	}
	s, err := daemon.FetchStatus(n.t.Context(), info.HTTP)
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// waitDurable waits until everything that was saved has passed a barrier.
func (n *node) waitDurable() {
	n.t.Helper()
	n.wait("all saves to be written", func() bool { return n.status().Store.WriteInFlightBytes == 0 })
	before := n.status().Store
	if before.Writes == 0 {
		return
	}
	// The barrier of the last write may have been the last one already: one that is due
	// comes within its interval, so a quiet while says the same as another barrier.
	quiet := time.Now().Add(time.Second)
	n.wait("a barrier", func() bool {
		return n.status().Store.Barriers > before.Barriers+1 || time.Now().After(quiet)
	})
}

// instance is an engine that is connected to a node.
type instance struct {
	*engine.Engine
	t         *testing.T
	scheduler *client.Scheduler
	worker    *client.Worker
}

// engineOptions is the small model that tests run on.
func engineOptions(change func(*engine.Options)) engine.Options {
	o := engine.Options{Model: model.Tiny(1), BlockSize: 8, Blocks: 256}
	if change != nil {
		change(&o)
	}
	return o
}

// newInstance starts an engine. It does not need the daemon to be there.
func newInstance(t *testing.T, n *node, change func(*engine.Options)) *instance {
	t.Helper()
	return newInstanceOf(t, n, change, func(*connector.Manifest) {})
}

// newInstanceOf starts an engine that declares another namespace than its own.
func newInstanceOf(t *testing.T, n *node, change func(*engine.Options), declare func(*connector.Manifest)) *instance {
	t.Helper()
	e, err := engine.New(engineOptions(change))
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{Engine: e, t: t}
	if n != nil {
		o := client.Options{Socket: n.socket, Engine: fmt.Sprintf("%s-%p", t.Name(), e), Manifest: e.Manifest(), RetryInterval: time.Millisecond}
		declare(&o.Manifest)
		if i.scheduler, err = client.NewScheduler(o); err != nil {
			t.Fatal(err)
		}
		if i.worker, err = client.NewWorker(o, 0, e.Layout(), []*os.File{e.File()}); err != nil {
			t.Fatal(err)
		}
		e.Attach(i.scheduler, i.worker)
	}
	t.Cleanup(i.close)
	return i
}

// close ends the engine process, as far as the daemon can tell.
func (i *instance) close() {
	if i.Engine == nil {
		return
	}
	if i.scheduler != nil {
		i.scheduler.Close()
		i.worker.Close()
	}
	if err := i.Close(); err != nil {
		i.t.Error(err)
	}
	i.Engine = nil
}

// run serves prompts together and returns their results.
func (i *instance) run(name string, prompts [][]uint32) []engine.Result {
	i.t.Helper()
	var requests []engine.Request
	for k, p := range prompts {
		requests = append(requests, engine.Request{ID: fmt.Sprintf("%s-%d", name, k), Prompt: p, MaxTokens: 8})
	}
	results, err := i.Run(i.t.Context(), requests)
	if err != nil {
		i.t.Fatal(err)
	}
	return results
}

// prompts makes n prompts that share a prefix.
func prompts(seed, n int) [][]uint32 {
	text := func(words int, salt int) string {
		var b strings.Builder
		for w := range words {
			fmt.Fprintf(&b, "%x ", (w+1)*(salt+7919)%65521)
		}
		return b.String()
	}
	shared := text(20, seed)
	out := make([][]uint32, n)
	for k := range out {
		out[k] = engine.EncodeText(shared + text(4+3*k, 1000*seed+k+1))
	}
	return out
}

// reference is what an engine without kvconn answers.
func reference(t *testing.T, change func(*engine.Options), ps [][]uint32) []engine.Result {
	t.Helper()
	alone := newInstance(t, nil, change)
	defer alone.close()
	return alone.run("reference", ps)
}

// same compares tokens; it is the one thing that must hold in every test.
func same(t *testing.T, what string, got, want []engine.Result) {
	t.Helper()
	for k := range want {
		if !slices.Equal(got[k].Tokens, want[k].Tokens) {
			t.Fatalf("%s: prompt %d answers %v, want %v (cached %d, recomputed %d)",
				what, k, got[k].Tokens, want[k].Tokens, got[k].CachedTokens, got[k].RecomputedTokens)
		}
	}
}

// cached adds up the tokens that came from kvconn.
func cached(rs []engine.Result) int {
	sum := 0
	for _, r := range rs {
		sum += r.CachedTokens
	}
	return sum
}
