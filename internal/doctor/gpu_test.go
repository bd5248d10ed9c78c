package doctor

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/gpu/libcuda"
)

func goodDevice() deviceFacts {
	return deviceFacts{name: "NVIDIA H200", pci: "0000:1b:00.0", memoryBytes: 141 << 30, attributes: map[libcuda.Attribute]int{
		libcuda.AttrMajor: 9, libcuda.AttrMinor: 0, libcuda.AttrCopyEngines: 3, libcuda.AttrHostRegister: 1, libcuda.AttrVMM: 1,
		libcuda.AttrPosixFD: 1, libcuda.AttrStreamMemOps64: 1, libcuda.AttrHostNUMANode: 1,
	}}
}

func with(a libcuda.Attribute, v int) func(*gpuFacts) {
	return func(f *gpuFacts) {
		f.devices[0].attributes = maps.Clone(f.devices[0].attributes)
		f.devices[0].attributes[a] = v
	}
}

func TestWhatADriverSaysIsJudged(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*gpuFacts)
		worst  Level
		want   string
	}{
		"all there":          {func(*gpuFacts) {}, OK, "NUMA node 1, 3 copy engines"},
		"no batch copies":    {func(f *gpuFacts) { f.hasBatch = false }, Warning, "CUDA 12.8"},
		"no stream writes":   {func(f *gpuFacts) { f.writes64 = false }, Warning, "host function"},
		"no device":          {func(f *gpuFacts) { f.devices = nil }, Failure, "CUDA_VISIBLE_DEVICES"},
		"old device":         {with(libcuda.AttrMajor, 7), Failure, "older than sm_75"},
		"no host memory":     {with(libcuda.AttrHostRegister, 0), Failure, "lock host memory"},
		"no virtual memory":  {with(libcuda.AttrVMM, 0), Warning, "cudaMalloc"},
		"no descriptors":     {with(libcuda.AttrPosixFD, 0), Warning, "cudaMalloc"},
		"no memory ops":      {with(libcuda.AttrStreamMemOps64, 0), Warning, "host function"},
		"no NUMA node":       {with(libcuda.AttrHostNUMANode, -1), OK, "unknown NUMA node"},
		"device is not told": {func(f *gpuFacts) { f.devices[0].err = errors.New("it is lost") }, Failure, "it is lost"},
	} {
		t.Run(name, func(t *testing.T) {
			f := gpuFacts{version: 13000, hasBatch: true, writes64: true, devices: []deviceFacts{goodDevice()}}
			c.change(&f)
			found := judgeGPU(f, nil)
			var text strings.Builder
			if err := Print(&text, found); err != nil {
				t.Fatal(err)
			}
			if Worst(found) != c.worst || !strings.Contains(text.String(), c.want) {
				t.Errorf("%v:\n%s", Worst(found), &text)
			}
		})
	}
}

func TestADriverThatCannotServeHasItsRemedy(t *testing.T) {
	for want, err := range map[string]error{
		"LD_LIBRARY_PATH":          fmt.Errorf("open: %w", libcuda.ErrStub),
		"CUDA 12.4 or newer":       libcuda.ErrTooOld,
		"NVIDIA container runtime": libcuda.ErrNoDriver,
		"Xid":                      &libcuda.Error{Entry: "cuInit", Code: libcuda.UnknownError},
	} {
		found := judgeGPU(gpuFacts{}, err)
		if Worst(found) != Failure || !strings.Contains(found[0].Remedy, want) {
			t.Errorf("%v: %+v", err, found)
		}
	}
}

func TestWithoutALibraryTheDoctorSaysSo(t *testing.T) {
	found := GPU(t.Context(), "/nonexistent/libcuda.so.1")
	if Worst(found) != Failure || !strings.Contains(found[0].Detail, "no CUDA driver") {
		t.Errorf("%+v", found)
	}
}
