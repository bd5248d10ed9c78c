package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/copier"
	"github.com/kvconn/kvconn/gpu/region"
	"github.com/kvconn/kvconn/internal/testkit/fakecuda"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

// resealed is a description with a change.
func resealed(t *testing.T, description *os.File, change func(d *region.Description)) *os.File {
	t.Helper()
	d, err := region.Read(description)
	if err != nil {
		t.Fatal(err)
	}
	change(d)
	f, err := region.Seal(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// refused fails the test unless the files are refused without costing the copier.
func refused(t *testing.T, r *rig, name string, files ...*os.File) {
	t.Helper()
	m, err := r.Open(files)
	switch {
	case err == nil:
		t.Errorf("%s: it was opened", name)
		_ = m.Close()
	case errors.Is(err, gpu.ErrLost) || errors.Is(err, gpu.ErrAgain):
		t.Errorf("%s: it cost the copier: %v", name, err)
	default:
		t.Logf("%s: %v", name, err)
	}
}

func TestWhatCannotBeOpenedIsRefused(t *testing.T) {
	e, r := startEngine(t, 0), newRig(t, nil)
	good := e.region(region.IPC, granularity)
	m := r.open(good) // stays open, and goes on
	alter := func(change func(d *region.Description)) *os.File { return resealed(t, good[0], change) }
	refused(t, r, "another device", alter(func(d *region.Description) { d.Device = "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff" }))
	refused(t, r, "a handle of nothing", alter(func(d *region.Description) { d.Parts[0].Handle = make([]byte, 64) }))
	refused(t, r, "larger than it is", alter(func(d *region.Description) {
		d.Parts[0].AllocationBytes, d.Parts[0].Bytes = 1<<30, 1<<30
	}))
	refused(t, r, "a part beyond its allocation", alter(func(d *region.Description) { d.Parts[0].Offset = 4096 }))
	refused(t, r, "exports without a socket", alter(func(d *region.Description) { d.Kind, d.Parts[0].Handle = region.VMM, nil }))
	// Memory that has gone.
	dies := startEngine(t, 0)
	files := dies.region(region.IPC, granularity)
	dies.kill()
	refused(t, r, "memory of a process that has died", files...)
	files = e.region(region.IPC, granularity)
	asleep := r.open(files)
	if err := asleep.Close(); err != nil {
		t.Error(err)
	}
	e.ask(&engineRequest{Op: "free", Region: e.last})
	refused(t, r, "memory that was freed for a sleep", files...)
	if err := exercise(t, r, e, r.open(e.region(region.IPC, granularity))); err != nil {
		t.Errorf("what is registered after the sleep: %v", err)
	}
	b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}}
	if err := m.Copy(t.Context(), &b); err != nil {
		t.Errorf("a good one that was open all the time: %v", err)
	}
}

// Memory of another GPU, in the name of the copier's.
func TestMemoryOfAnotherGPUIsRefused(t *testing.T) {
	devices := "FAKECUDA_DEVICES=2"
	e, far, r := startEngine(t, 0, devices), startEngine(t, 1, devices), newRig(t, nil, devices)
	good := e.region(region.IPC, granularity)
	m := r.open(good)
	this, err := region.Read(good[0])
	if err != nil {
		t.Fatal(err)
	}
	onThis := func(d *region.Description) { d.Device = this.Device }
	refused(t, r, "a handle", resealed(t, far.region(region.IPC, granularity)[0], onThis))
	files := far.region(region.VMM, granularity)
	refused(t, r, "an export", resealed(t, files[0], onThis), files[1])
	if err := exercise(t, r, e, m); err != nil {
		t.Errorf("what was open all the time: %v", err)
	}
}

// CUDA refuses a process's own handles: a copier's are those of the memory that its kernels use.
func TestTheCopiersOwnMemoryIsRefused(t *testing.T) {
	e, r := startEngine(t, 0), newRig(t, nil)
	if fakecuda.Real() {
		t.Skip("the handles of a real driver are not known")
	}
	good := e.region(region.IPC, granularity)
	r.open(good)
	pid := func(n int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(n)) }
	changed := false
	own := resealed(t, good[0], func(d *region.Description) {
		h := d.Parts[0].Handle
		at := bytes.Index(h, pid(e.cmd.Process.Pid))
		if changed = at >= 0; changed {
			copy(h[at:], pid(copierOf(t, r).cmd.Process.Pid))
		}
	})
	if !changed {
		t.Fatal("the handle does not name its process")
	}
	refused(t, r, "the copier's own", own)
}

func TestADescriptorThatIsNoExportIsRefused(t *testing.T) {
	e, r := startEngine(t, 0), newRig(t, nil)
	open := func(path string) *os.File {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	reads, writes, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writes.Close() }()
	_, socket := pair(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err == nil {
		err = file.Truncate(2 * granularity)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*os.File{
		"a device": open("/dev/null"), "a folder": open("/"), "a pipe": reads, "a socket": socket, "a file": file,
		"shared memory": memfd.New(t, granularity+4096),
	} {
		files := e.region(region.VMM, granularity)
		ours, theirs := pair(t)
		sendExports(ours, []*os.File{f})
		refused(t, r, name, files[0], theirs)
	}
	r.open(e.region(region.VMM, granularity))
}

// Memory that only a fabric's handles export cannot be shared as descriptors: the engine is told so by its driver, and a
// description of another kind is none for the daemon.
func TestMemoryOfAFabricIsRefused(t *testing.T) {
	fabric := "FAKECUDA_ATTR=128=1"
	e, r := startEngine(t, 0, fabric), newRig(t, nil, fabric)
	r.open(e.region(region.IPC, granularity))
	reply, files := e.try(&engineRequest{Op: "region", Kind: region.VMM, Sizes: []int64{granularity}, Fabric: true})
	if copier.CloseAll(files); !strings.Contains(reply.Error, "export an allocation") {
		t.Errorf("the engine's export: %q", reply.Error)
	}
	refused(t, r, "a description of a fabric's memory", resealed(t, e.region(region.IPC, granularity)[0], func(d *region.Description) {
		d.Kind = "fabric"
	}))
}

// A GPU whose memory or addresses are used up refuses a registration. What is open goes on, and nothing of the attempt stays.
func TestWhatCannotBeMappedIsRefused(t *testing.T) {
	control := filepath.Join(t.TempDir(), "control")
	stats := filepath.Join(t.TempDir(), "stats")
	e := startEngine(t, 0)
	r := newRig(t, nil, "FAKECUDA_CONTROL="+control, "FAKECUDA_STATS="+stats)
	open := r.open(e.region(region.IPC, granularity))
	pid := copierOf(t, r).cmd.Process.Pid
	holds := func() (all []int64) {
		for _, name := range []string{"ipc_imports", "mappings", "reservations", "vmm_handles", "descriptors"} {
			all = append(all, counted(t, stats+".*", name))
		}
		return append(all, int64(descriptorsOf(t, pid)))
	}
	before := holds()
	for _, entry := range []string{
		"cuIpcOpenMemHandle:2:2", "cuMemAddressReserve:1:2", "cuMemImportFromShareableHandle:3:2", "cuMemMap:1:2", "cuMemMap:3:2", "cuMemSetAccess:2:2",
	} {
		kind := region.VMM
		if strings.HasPrefix(entry, "cuIpc") {
			kind = region.IPC
		}
		order(t, control, entry)
		refused(t, r, entry, e.region(kind, granularity, granularity, granularity)...)
		if after := holds(); !slices.Equal(after, before) {
			t.Errorf("%s: the copier holds %v, and held %v before", entry, after, before)
		}
		if err := exercise(t, r, e, r.open(e.region(kind, granularity, granularity))); err != nil {
			t.Errorf("%s: afterwards: %v", entry, err)
		}
		before = holds()
	}
	b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}}
	if err := open.Copy(t.Context(), &b); err != nil {
		t.Errorf("what was open all the time: %v", err)
	}
}

// More device addresses than there are.
func TestARegionThatIsTooLargeForTheGPUsAddressesIsRefused(t *testing.T) {
	e, r := startEngine(t, 0), newRig(t, nil, "FAKECUDA_VA_BYTES=134217728")
	sizes := make([]int64, 80)
	for i := range sizes {
		sizes[i] = granularity
	}
	m := r.open(e.region(region.VMM, granularity))
	refused(t, r, "80 allocations", e.region(region.VMM, sizes...)...)
	e.last = 0
	if err := exercise(t, r, e, m); err != nil {
		t.Error(err)
	}
}
