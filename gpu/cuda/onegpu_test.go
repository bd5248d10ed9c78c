package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/gpu/region"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

// Each call of the driver fails in each way on one GPU with two engines, while another GPU and a processor's memory are in
// use: those go on, no byte is wrong that was called right, the GPU serves both again afterwards, and nothing is left over.
func TestAnyFaultOfTheDriverCostsItsGPUOnly(t *testing.T) {
	fakeLibrary(t)
	before := holdings(t)
	every := 3 // one fault of that many, another one for the next entry
	if os.Getenv("KVCONN_TEST_LONG") != "" {
		every = 1
	}
	for i, entry := range afterStart {
		t.Run(entry, func(t *testing.T) {
			for k, what := range faults {
				if (i+k)%every != 0 {
					continue
				}
				t.Run(what, func(t *testing.T) {
					t.Parallel()
					newFault(t, entry, what).run()
				})
			}
		})
		awaitTrue(t, "nothing is left of the faults of "+entry, func() bool { return holdings(t).within(before) })
	}
}

// holding is what this process has of copiers and engines.
type holding struct{ descriptors, mappings, children int }

func holdings(t *testing.T) (h holding) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	h.descriptors, h.mappings = openDescriptors(t), strings.Count(string(maps), "memfd:")
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tasks {
		children, _ := os.ReadFile(f) // the thread may have ended
		h.children += len(strings.Fields(string(children)))
	}
	return h
}

func (h holding) within(other holding) bool {
	return h.descriptors <= other.descriptors && h.mappings <= other.mappings && h.children <= other.children
}

// oneFault is a fault of one GPU's driver, with two engines there, one on another GPU, and one on a processor.
type oneFault struct {
	*rig
	t              *testing.T
	entry, what    string
	stats, control string
	first, second  *testEngine
	ofSecond       gpu.Memory
	others         []gpu.Memory
}

func newFault(t *testing.T, entry, what string) *oneFault {
	dir := t.TempDir()
	f := &oneFault{t: t, entry: entry, what: what, stats: filepath.Join(dir, "stats"), control: filepath.Join(dir, "control")}
	version := cmp.Or(os.Getenv("FAKECUDA_VERSION"), "13000")
	switch {
	case strings.Contains(entry, "HtoD") || strings.Contains(entry, "DtoH"):
		version = "12040" // without batches
	case strings.Contains(entry, "Batch") && version == "12040":
		version = "12080"
	}
	env := []string{"FAKECUDA_DEVICES=2", "FAKECUDA_VERSION=" + version}
	f.rig = newRig(t, deadlinesFor(what), append(slices.Clone(env), "FAKECUDA_CONTROL="+f.control, "FAKECUDA_STATS="+f.stats)...)
	f.first, f.second = startEngine(t, 0, env...), startEngine(t, 0, env...)
	good := startEngine(t, 1, env...)
	f.others = []gpu.Memory{f.open(good.region(region.IPC, granularity)), f.open([]*os.File{memfd.New(t, 1<<20)})}
	return f
}

func (f *oneFault) run() {
	t := f.t
	t.Helper()
	text, held := fmt.Sprintf("%s@0:1:%s", f.entry, f.what), []int64(nil)
	switch f.entry {
	case "cuMemHostRegister": // called for the arena as soon as a copier serves, after 8 times for its kernels
		order(t, f.control, fmt.Sprintf("%s@0:9+:%s", f.entry, f.what))
		f.openSecond()
	case "cuStreamSynchronize": // called after another call's error
		text += "\ncuEventRecord@0:1:999"
		fallthrough
	default:
		f.openSecond()
		held = f.heldOnGPU()
		order(t, f.control, text)
	}
	for _, kind := range []region.Kind{region.IPC, region.VMM} {
		f.underFault(kind)
	}
	if counted(t, f.stats+".*", "faults") == 0 {
		t.Error("the fault did not come")
	}
	if err := os.Remove(f.control); err != nil {
		t.Fatal(err)
	}
	// Whoever has lost its memory registers again.
	replaced(t, f.rig, f.first)
	if f.ofSecond.(*memory).c.ended() {
		f.openSecond()
	}
	if err := exercise(t, f.rig, f.second, f.ofSecond); err != nil {
		t.Errorf("the second engine does not copy afterwards: %v", err)
	}
	if now := f.heldOnGPU(); held != nil && !slices.Equal(now, held) && (f.what != "999" || !slices.Contains(givesBack, f.entry)) {
		t.Errorf("the copier holds %v, and held %v before with the same memory open", now, held)
	}
	if err := f.ofSecond.Close(); err != nil {
		t.Error(err)
	}
}

// openSecond registers the second engine's memory, again and again while copiers end.
func (f *oneFault) openSecond() {
	f.t.Helper()
	files := f.second.region(region.IPC, granularity)
	awaitTrue(f.t, "the second engine's memory is open", func() (is bool) {
		var err error
		f.ofSecond, err = f.Open(files)
		return err == nil
	})
}

// underFault has both engines copy. Each copies right, or is told that it did not.
func (f *oneFault) underFault(kind region.Kind) {
	t := f.t
	t.Helper()
	const at, n, seed = 6 << 20, 1 << 16, 77
	f.second.fill(f.second.last, 0, n, seed)
	clear(f.arena[at : at+n])
	saved := make(chan error, 1)
	go func() {
		saved <- f.ofSecond.Copy(t.Context(), &gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{f.piece(0, 0, at, n)}})
	}()
	m, err := f.Open(f.first.region(kind, granularity))
	if err == nil {
		err = exercise(t, f.rig, f.first, m)
		err = errors.Join(err, m.Close())
	}
	f.isTold(string(kind), err)
	if err = <-saved; err == nil {
		f.hostWants(at, n, 0, seed)
	}
	f.isTold("second engine", err)
	// Others go on.
	for _, other := range f.others {
		if err := other.Copy(t.Context(), &gpu.Batch{Pieces: []gpu.Piece{f.piece(0, 64, 4<<20, 1<<16)}}); err != nil {
			t.Errorf("others: %v", err)
		}
	}
}

// isTold fails the test unless err is none, or says what to do: the memory is lost, it can be registered again, or the driver
// answered a call with an error.
func (f *oneFault) isTold(who string, err error) {
	f.t.Helper()
	var answered *libcuda.Error
	var reply *ReplyError
	if err == nil || errors.Is(err, gpu.ErrLost) || errors.Is(err, gpu.ErrAgain) || errors.As(err, &answered) || errors.As(err, &reply) {
		return
	}
	f.t.Errorf("%s: %v", who, err)
}

// heldOnGPU is what the first GPU's copier holds now: descriptors, and what the driver counts.
func (f *oneFault) heldOnGPU() []int64 {
	f.t.Helper()
	pid := f.ofSecond.(*memory).c.cmd.Process.Pid
	stats := fmt.Sprintf("%s.%d", f.stats, pid)
	held := []int64{int64(descriptorsOf(f.t, pid))}
	for _, name := range []string{"ipc_imports", "mappings", "reservations", "vmm_handles", "allocations", "streams", "events"} {
		held = append(held, counted(f.t, stats, name))
	}
	return held
}
