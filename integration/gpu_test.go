package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/testkit/fakecuda"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// fakeLibrary is the stand-in for libcuda, built once for all tests.
var fakeLibrary = sync.OnceValues(func() (string, error) {
	if _, err := daemonBinary(); err != nil {
		return "", err
	}
	return fakecuda.Build("..", binaryDir)
})

// An engine whose KV cache lies on a device, through the real daemon and its copier: the same answers after restarts of
// both, whoever dies in between.
func TestCacheOfADeviceSurvivesRestarts(t *testing.T) {
	t.Parallel()
	library := fakecuda.Library(t, fakeLibrary)
	ps := prompts(1, 6)
	want := reference(t, nil, ps)
	n := newNode(t, "--cuda-library", library)
	n.start()
	serve := func(name string, e *engineProcess) []engine.Result {
		t.Helper()
		e.submit(requestsOf(name, ps))
		got := e.answer().Results
		same(t, name, got, want)
		return got
	}
	first := startEngineProcess(t, processOptions{Socket: n.socket, CUDALibrary: library})
	serve("first run", first)
	n.saved()
	first.kill()
	second := startEngineProcess(t, processOptions{Socket: n.socket, CUDALibrary: library})
	if got := serve("another engine", second); cached(got) == 0 {
		t.Error("nothing was loaded into the device")
	}
	if s := n.status(); len(s.GPUs) != 1 || !s.GPUs[0].Running || s.GPUs[0].Starts != 1 || s.GPUs[0].LoadedBytes == 0 || s.GPUs[0].SavedBytes == 0 {
		t.Errorf("%+v", s.GPUs)
	}
	n.stop()
	n.start()
	third := startEngineProcess(t, processOptions{Socket: n.socket, CUDALibrary: library})
	if got := serve("after a restart of both", third); cached(got) == 0 {
		t.Error("nothing came from disk")
	}
	// The copier is killed: the engine's ranks register again, with a new copier.
	if err := syscall.Kill(copierOf(t, n), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// It loads nothing while the copier is started again, after a pause.
	wait.For(t, "the engine to load with a new copier", func() bool {
		return cached(serve("after the copier's end", third)) > 0 && n.status().GPUs[0].Starts == 2
	})
	// A copier does not outlive a daemon that is killed.
	pid := copierOf(t, n)
	n.kill()
	wait.For(t, "the copier's end", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

// An engine whose saves are under way while it computes on, and which overwrites their blocks without waiting: whoever loads
// what was saved computes the same answers.
func TestBlocksOfADeviceAreOverwrittenWhileTheyAreSaved(t *testing.T) {
	t.Parallel()
	library := fakecuda.Library(t, fakeLibrary)
	n := newNode(t, "--cuda-library", library)
	control := filepath.Join(t.TempDir(), "control")
	n.environ = []string{"FAKECUDA_CONTROL=" + control} // in the copier
	// slow has the copier's device come late to each call.
	slow := func(by time.Duration) {
		t.Helper()
		if err := os.WriteFile(control, fmt.Appendf(nil, "delay=%d", by.Microseconds()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const aFewSteps = 2 * time.Millisecond
	slow(aFewSteps)
	n.start()
	// Its memory holds little more than one prompt: nearly each step takes blocks of earlier ones.
	e := startEngineProcess(t, processOptions{Socket: n.socket, CUDALibrary: library, Later: true, Blocks: 40})
	var ps [][][]uint32
	var want [][]engine.Result
	var saved, dropped uint64
	count := func() {
		saved, dropped = 0, 0
		for _, r := range n.status().Ranks {
			saved, dropped = saved+r.Transfers.SavedBlocks, dropped+r.Transfers.DroppedBlocks
		}
	}
	// round has the engine answer new prompts while something is done to others.
	round := func(meanwhile func()) {
		t.Helper()
		at := len(ps)
		ps = append(ps, prompts(2+at, 6))
		want = append(want, reference(t, nil, ps[at]))
		name := fmt.Sprint("round ", at)
		e.submit(requestsOf(name, ps[at]))
		meanwhile()
		same(t, name, e.answer().Results, want[at])
	}
	round(func() {})
	// A block is taken back if its save is under way when a later prompt gets it: how many steps of the engine the device has
	// to be late for that depends on the machine.
	for late := aFewSteps; late <= time.Second && dropped == 0; late *= 4 {
		slow(late)
		round(func() {})
		n.saved()
		count()
	}
	slow(aFewSteps)
	if t.Logf("%d blocks saved, %d taken back", saved, dropped); saved == 0 || dropped == 0 {
		t.Error("want some of both")
	}
	round(func() { // while saves are under way: each is still reported
		n.kill()
		n.start()
	})
	round(func() { // what was copied meanwhile is looked at late
		freeze(t, n.cmd.Process.Pid, 10, 20*time.Millisecond)
	})
	n.saved()
	e.kill()
	other := startEngineProcess(t, processOptions{Socket: n.socket, CUDALibrary: library})
	hits := 0
	for at := range ps {
		name := fmt.Sprint("another engine ", at)
		other.submit(requestsOf(name, ps[at]))
		got := other.answer().Results
		same(t, name, got, want[at])
		hits += cached(got)
	}
	if hits == 0 {
		t.Error("nothing was loaded into the device")
	}
}

// freeze has a process stand still that often, for that long each time.
func freeze(t *testing.T, pid, times int, pause time.Duration) {
	t.Helper()
	for range times {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause)
		_ = syscall.Kill(pid, syscall.SIGCONT)
		time.Sleep(5 * time.Millisecond)
	}
}

// copierOf is the process id of a daemon's only copier.
func copierOf(t *testing.T, n *node) int {
	t.Helper()
	var all []string
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.cmd.Process.Pid))
	for _, f := range tasks {
		if b, err := os.ReadFile(f); err == nil {
			all = append(all, strings.Fields(string(b))...)
		}
	}
	if err != nil || len(all) != 1 {
		t.Fatalf("children %v: %v", all, err)
	}
	pid, err := strconv.Atoi(all[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
