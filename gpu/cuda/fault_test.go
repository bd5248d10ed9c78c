package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/region"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

var faults = []string{"999", "sticky=700", "hang", "segv"}

// impatient deadlines, so that hung calls are over soon.
func impatient(o *Options) {
	o.OpenTimeout, o.CopyTimeout, o.StartTimeout = 500*time.Millisecond, 500*time.Millisecond, 4*time.Second
	o.RestartPause, o.RestartPauseMax = time.Millisecond, 10*time.Millisecond
}

// deadlinesFor are impatient ones only for faults that never end: on a busy machine they are too short for what goes well.
func deadlinesFor(fault string) func(*Options) {
	return func(o *Options) {
		impatient(o)
		if fault != "hang" && fault != "stall" {
			o.OpenTimeout, o.CopyTimeout, o.StartTimeout = time.Minute, time.Minute, time.Minute
		}
	}
}

// exercise saves and loads through the memory of an engine's newest region. A copy without an error must be right.
func exercise(t *testing.T, r *rig, e *testEngine, m gpu.Memory) error {
	t.Helper()
	n := e.last
	seed := uint64(n + 10)
	e.fill(n, 0, 1<<16, seed)
	clear(r.arena[:1<<16])
	err := m.Copy(t.Context(), &gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 1<<16)}})
	if err != nil {
		return err
	}
	r.hostWants(0, 1<<16, 0, seed)
	r.fillHost(1<<17, 1<<16, 1<<18, seed+1)
	err = m.Copy(t.Context(), &gpu.Batch{Direction: gpu.Load, Pieces: []gpu.Piece{r.piece(0, 1<<18, 1<<17, 1<<16)}})
	if err != nil {
		return err
	}
	e.wants(n, 1<<18, 1<<16, seed+1)
	return nil
}

// counted is the sum of a counter of the stand-in over all files that the pattern names.
func counted(t testing.TB, pattern, name string) (sum int64) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for ; len(b) >= 32; b = b[32:] {
			if n, _, _ := bytes.Cut(b[:24], []byte{0}); string(n) == name {
				sum += int64(binary.LittleEndian.Uint64(b[24:32]))
			}
		}
	}
	return sum
}

func TestADriverThatDoesNotStartCostsItsGPUOnly(t *testing.T) {
	for _, entry := range slices.Concat(atStart, forKernels) {
		for _, what := range append(faults, "exit") {
			if what == "999" && slices.Contains(dispensable, entry) {
				continue
			}
			t.Run(entry+"/"+what, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, func(o *Options) {
					impatient(o)
					o.StartTimeout = time.Second
				}, fmt.Sprintf("FAKECUDA_FAULT=%s:*:%s", entry, what))
				e := startEngine(t, 0)
				if _, err := r.Open(e.region(region.IPC, granularity)); err == nil {
					t.Error("it was opened")
				}
				onHost := r.open([]*os.File{memfd.New(t, 1<<20)})
				if err := onHost.Copy(t.Context(), &gpu.Batch{Pieces: []gpu.Piece{r.piece(0, 0, 0, 100)}}); err != nil {
					t.Error(err)
				}
				if s := r.Devices(); len(s) != 1 || s[0].Running || s[0].LastError == "" {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// copierOf is the process that serves the only GPU.
func copierOf(t *testing.T, r *rig) *process {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.gpus {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.current
	}
	t.Fatal("no copier")
	return nil
}

func TestACopierThatIsFrozenIsKilledAndReplaced(t *testing.T) {
	r, e := newRig(t, deadlinesFor("none")), startEngine(t, 0)
	m := r.open(e.region(region.IPC, granularity))
	p := copierOf(t, r)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitTrue(t, "all its threads stand still", func() bool { return stopped(t, p.cmd.Process.Pid) })
	b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}}
	// Only these copies are to time out. Nothing but a copy reads the deadline, on the goroutine that copies.
	patience := r.o.CopyTimeout
	r.o.CopyTimeout = 500 * time.Millisecond
	if err := m.Copy(t.Context(), &b); !errors.Is(err, gpu.ErrLost) || !errors.Is(err, errTimeout) {
		t.Errorf("%v", err)
	}
	if !p.ended() {
		t.Error("memory was called lost before the process had gone")
	}
	if err := m.Copy(t.Context(), &b); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("%v", err)
	}
	r.o.CopyTimeout = patience
	replaced(t, r, e)
}

// stopped reports whether every thread of a process has taken its stop.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatal("no threads: ", err)
	}
	for _, f := range threads {
		stat, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, after, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(after, "T") {
			return false
		}
	}
	return true
}

func replaced(t *testing.T, r *rig, e *testEngine) {
	t.Helper()
	var m gpu.Memory
	files := e.region(region.IPC, granularity)
	awaitTrue(t, "a new copier", func() bool {
		var err error
		m, err = r.Open(files)
		return err == nil
	})
	if err := exercise(t, r, e, m); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestACopierThatIsKilledInACopyIsReplaced(t *testing.T) {
	r, e := newRig(t, nil, "FAKECUDA_FAULT=cuEventSynchronize:1:hang"), startEngine(t, 0)
	r.o.RestartPause, r.o.RestartPauseMax = time.Millisecond, time.Millisecond
	m := r.open(e.region(region.IPC, granularity))
	ended := make(chan error, 1)
	go func() {
		ended <- m.Copy(t.Context(), &gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}})
	}()
	p := copierOf(t, r)
	awaitTrue(t, "the copy is under way", func() bool {
		p.submitting.Lock()
		defer p.submitting.Unlock()
		return p.slots[0].busy
	})
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, gpu.ErrLost) {
		t.Errorf("%v", err)
	}
}

func TestAnEngineThatIsKilledCostsItsMemoryOnly(t *testing.T) {
	r, dies, lives := newRig(t, nil), startEngine(t, 0), startEngine(t, 0)
	first, second := r.open(dies.region(region.IPC, granularity)), r.open(lives.region(region.IPC, granularity))
	dies.kill()
	_ = first.Copy(t.Context(), &gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}})
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := exercise(t, r, lives, second); err != nil {
		t.Error(err)
	}
	if n := r.Devices()[0].Starts; n != 1 {
		t.Errorf("%d starts", n)
	}
}

// An engine that dies while its memory is copied costs its memory only, and nothing of it stays in the copier.
func TestAnEngineThatIsKilledInACopyCostsItsMemoryOnly(t *testing.T) {
	for _, kind := range []region.Kind{region.IPC, region.VMM} {
		for _, d := range []gpu.Direction{gpu.Load, gpu.Save} {
			t.Run(fmt.Sprint(kind, " ", d), func(t *testing.T) {
				control := filepath.Join(t.TempDir(), "control")
				stats := filepath.Join(t.TempDir(), "stats")
				r := newRig(t, nil, "FAKECUDA_CONTROL="+control, "FAKECUDA_STATS="+stats)
				dies, lives := startEngine(t, 0), startEngine(t, 0)
				second := r.open(lives.region(region.IPC, granularity))
				held := func() (all []int64) {
					for _, name := range []string{"ipc_imports", "mappings", "reservations", "vmm_handles", "descriptors"} {
						all = append(all, counted(t, stats+".*", name))
					}
					return append(all, int64(descriptorsOf(t, copierOf(t, r).cmd.Process.Pid)))
				}
				before := held()
				first, err := r.Open(dies.region(kind, granularity, granularity))
				if err != nil {
					t.Fatal(err)
				}
				order(t, control, "delay=300000")
				ended := make(chan error, 1)
				// On a machine that stood still a copy may be over before it is seen: then there is another.
				for seen := false; ; {
					go func() {
						ended <- first.Copy(t.Context(), &gpu.Batch{Direction: d, Pieces: []gpu.Piece{r.piece(0, granularity-100, 0, 4096)}})
					}()
					awaitTrue(t, "the copy is under way or over", func() bool {
						seen = copierOf(t, r).copies()
						return seen || len(ended) > 0
					})
					if seen {
						break
					}
					if err := <-ended; err != nil {
						t.Fatalf("a copy before: %v", err)
					}
				}
				dies.kill()
				if err := <-ended; err != nil { // the mapping keeps the memory
					t.Errorf("the copy: %v", err)
				}
				if err := first.Close(); err != nil {
					t.Error(err)
				}
				if err := os.Remove(control); err != nil {
					t.Fatal(err)
				}
				if err := exercise(t, r, lives, second); err != nil {
					t.Error(err)
				}
				if after := held(); !slices.Equal(after, before) {
					t.Errorf("the copier holds %v, and held %v before", after, before)
				}
				if n := r.Devices()[0].Starts; n != 1 {
					t.Errorf("%d starts", n)
				}
			})
		}
	}
}

func TestNoProcessIsLeftOver(t *testing.T) {
	r, e := newRig(t, nil), startEngine(t, 0)
	r.open(e.region(region.IPC, granularity))
	pid := copierOf(t, r).cmd.Process.Pid
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("process %d: %v", pid, err)
	}
	if _, err := r.Open(e.region(region.IPC, granularity)); err == nil {
		t.Error("a closed driver opens memory")
	}
}

// A driver that hangs as it starts must not keep a daemon from stopping.
func TestACopierThatIsBeingStartedIsEndedAtOnce(t *testing.T) {
	r, e := newRig(t, func(o *Options) { o.StartTimeout = time.Hour }, "FAKECUDA_FAULT=cuInit:*:hang"), startEngine(t, 0)
	files := e.region(region.IPC, granularity)
	opened := make(chan error, 2)
	for range cap(opened) {
		go func() {
			_, err := r.Open(files)
			opened <- err
		}()
	}
	awaitTrue(t, "a copier is being started", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, g := range r.gpus {
			if g.starting.TryLock() {
				g.starting.Unlock()
				return false
			}
			return true
		}
		return false
	})
	r.Quit()
	for range cap(opened) {
		if err := <-opened; err == nil {
			t.Error("it was opened")
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestAProgramThatIsNoCopierIsToldSo(t *testing.T) {
	for name, command := range map[string][]string{
		"not there":    {"/nonexistent/kvconnd"},
		"ends at once": {"false"},
		"ends well":    {"true"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.Command = command })
			e := startEngine(t, 0)
			files := e.region(region.IPC, granularity)
			before := openDescriptors(t)
			defer awaitTrue(t, "all descriptors are closed", func() bool { return openDescriptors(t) <= before })
			if _, err := r.Open(files); err == nil {
				t.Error("it was opened")
			}
			if _, err := r.Open(files); err == nil || !strings.Contains(err.Error(), "started again in") {
				t.Errorf("%v: it is started without a pause", err)
			}
		})
	}
}

func TestACopierThatAnswersNonsenseIsEnded(t *testing.T) {
	for name, script := range map[string]string{
		"no answer":   "exec yes >&2",
		"no JSON":     "printf nonsense >&3; exec sleep 1000",
		"no device":   "printf '{}' >&3; exec sleep 1000",
		"many":        "while printf '{\"device\":{}' >&3; do :; done",
		"leaves one":  "sleep 2 & printf nonsense >&3; exec sleep 1000",
		"hangs up":    "exec 3>&-; exec sleep 1000",
		"long answer": "head -c 100000 /dev/zero >&3; exec sleep 1000",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *Options) {
				o.StartTimeout, o.Command = 2*time.Second, []string{"sh", "-c", script}
			})
			e := startEngine(t, 0)
			files := e.region(region.IPC, granularity)
			before := openDescriptors(t)
			if _, err := r.Open(files); err == nil {
				t.Error("it was opened")
			}
			awaitTrue(t, "all descriptors are closed", func() bool { return openDescriptors(t) <= before })
		})
	}
}
