package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/region"
)

// afterStart are the driver's calls that a copier makes once it serves.
var afterStart = []string{
	"cuCtxSetCurrent", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle", "cuMemGetAddressRange", "cuMemAddressReserve",
	"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess", "cuMemRelease", "cuMemUnmap", "cuMemAddressFree",
	"cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime", "cuMemcpyBatchAsync", "cuMemcpyHtoDAsync",
	"cuMemcpyDtoHAsync", "cuMemHostRegister", "cuStreamSynchronize",
}

// givesBack are those that release something, and do not where they fail.
var givesBack = []string{"cuIpcCloseMemHandle", "cuMemRelease", "cuMemUnmap", "cuMemAddressFree"}

// withKernels are those that it makes when a kernel is to copy.
var withKernels = []string{"cuLaunchKernel"}

// atStart are those that it makes before it serves.
var atStart = []string{
	"cuInit", "cuDriverGetVersion", "cuGetProcAddress", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid",
	"cuDevicePrimaryCtxRetain", "cuDeviceGetName", "cuDeviceGetAttribute", "cuCtxSetCurrent", "cuMemGetInfo",
	"cuStreamCreateWithPriority", "cuEventCreate",
}

// forKernels are those that it makes before it serves for its kernels.
var forKernels = []string{"cuModuleLoadDataEx", "cuModuleGetFunction", "cuMemAlloc", "cuMemHostRegister"}

// dispensable are those whose errors, but for sticky ones, do not keep a copier from its start.
var dispensable = append([]string{"cuDeviceGetAttribute"}, forKernels...)

// entries are all that have faults in these tests.
func entries() []string {
	all := slices.Concat(afterStart, withKernels, atStart, forKernels)
	slices.Sort(all)
	return slices.Compact(all)
}

// calledIn are the entry points that processes noted in files that begin like that, without their versions.
func calledIn(prefix string) ([]string, error) {
	files, err := filepath.Glob(prefix + ".*")
	if err != nil {
		return nil, err
	}
	var called []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for name := range strings.Lines(string(text)) {
			name, _, _ = strings.Cut(strings.TrimSpace(name), "_v")
			called = append(called, name)
		}
	}
	slices.Sort(called)
	return slices.Compact(called), nil
}

// withoutFaults is an error if a copier of any test called an entry point that no test has fail.
func withoutFaults(prefix string) error {
	called, err := calledIn(prefix)
	if err != nil {
		return err
	}
	known := entries()
	if forgotten := slices.DeleteFunc(called, func(name string) bool { return slices.Contains(known, name) }); len(forgotten) > 0 {
		return fmt.Errorf("copiers call %v, which have no faults in entries_test.go", forgotten)
	}
	return nil
}

// The lists are what copiers call: no more, and, as TestMain finds after all tests, no less.
func TestEachEntryWithFaultsIsCalled(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "called")
	for _, version := range []string{"12040", newestVersion} {
		control := filepath.Join(t.TempDir(), "control")
		env := []string{"FAKECUDA_VERSION=" + version, "FAKECUDA_CALLED=" + prefix, "FAKECUDA_CONTROL=" + control}
		e, r := startEngine(t, 0, env[0]), newRig(t, nil, env...)
		for _, kind := range []region.Kind{region.IPC, region.VMM} {
			m, err := r.Open(e.region(kind, granularity, granularity))
			if err != nil {
				t.Fatal(err)
			}
			if err := exercise(t, r, e, m); err != nil {
				t.Error(err)
			}
			byKernel(t, r)
			if err := checkCopies(t, r, e, m, 16); err != nil {
				t.Error(err)
			}
			// After an error the whole stream is awaited.
			order(t, control, "cuEventRecord:1:999")
			b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}}
			if err := m.Copy(t.Context(), &b); err == nil {
				t.Error("the fault did not come")
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	called, err := calledIn(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if want := entries(); !slices.Equal(called, want) {
		t.Errorf("called are\n%v, and faults are of\n%v", called, want)
	}
}

// order gives copiers new faults.
func order(t *testing.T, control, text string) {
	t.Helper()
	if err := os.WriteFile(control+".new", []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(control+".new", control); err != nil {
		t.Fatal(err)
	}
}
