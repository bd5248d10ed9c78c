package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/gpu/libcuda"
)

// driverTimeout is how long the CUDA driver may take to answer. Its start on a machine with eight GPUs and without the
// persistence daemon takes ten seconds and more.
const driverTimeout = time.Minute

// GPU looks at the CUDA driver of this machine, whose library is at path, and at its devices. A call of the driver that
// hangs is left behind: it ends with the process.
func GPU(ctx context.Context, path string) []Finding {
	ctx, cancel := context.WithTimeout(ctx, driverTimeout)
	defer cancel()
	answer := make(chan []Finding, 1)
	go func() {
		facts, err := askDriver(path)
		answer <- judgeGPU(facts, err)
	}()
	select {
	case findings := <-answer:
		return findings
	case <-ctx.Done():
		return []Finding{{Name: "driver", Level: Failure, Detail: fmt.Sprintf("%s does not answer: %v", path, ctx.Err()),
			Remedy: "Run nvidia-smi: if it hangs, too, look at the kernel's log for Xid errors, and reset the GPU or restart the machine."}}
	}
}

// gpuFacts are what the driver says.
type gpuFacts struct {
	version  libcuda.Version
	hasBatch bool
	writes64 bool
	devices  []deviceFacts
}

// deviceFacts are what the driver says about one device.
type deviceFacts struct {
	ordinal     int
	name        string
	uuid        libcuda.UUID
	pci         string
	memoryBytes int64
	attributes  map[libcuda.Attribute]int
	err         error
}

func askDriver(path string) (gpuFacts, error) {
	lib, err := libcuda.Open(path)
	if err != nil {
		return gpuFacts{}, err
	}
	f := gpuFacts{version: lib.Version(), hasBatch: lib.HasBatch(), writes64: lib.HasStreamWrites()}
	devices, err := lib.Devices()
	for _, d := range devices {
		f.devices = append(f.devices, askDevice(d))
	}
	return f, err
}

func askDevice(d libcuda.Device) deviceFacts {
	f := deviceFacts{ordinal: d.Ordinal(), attributes: map[libcuda.Attribute]int{}}
	var errs [4]error
	f.name, errs[0] = d.Name()
	f.uuid, errs[1] = d.UUID()
	f.pci, errs[2] = d.PCIBusID()
	f.memoryBytes, errs[3] = d.TotalBytes()
	f.err = errors.Join(errs[:]...)
	for _, a := range [...]libcuda.Attribute{
		libcuda.AttrMajor, libcuda.AttrMinor, libcuda.AttrCopyEngines, libcuda.AttrHostRegister, libcuda.AttrVMM,
		libcuda.AttrPosixFD, libcuda.AttrStreamMemOps64, libcuda.AttrFabric, libcuda.AttrHostNUMANode,
	} {
		v, err := d.Attribute(a)
		if err != nil {
			f.err = errors.Join(f.err, err)
			continue
		}
		f.attributes[a] = v
	}
	return f
}

// judgeGPU says what the facts mean for kvconn.
func judgeGPU(f gpuFacts, err error) []Finding {
	var found []Finding
	say := func(l Level, name, remedy, detail string, args ...any) {
		found = append(found, Finding{Name: name, Level: l, Detail: fmt.Sprintf(detail, args...), Remedy: remedy})
	}
	if err != nil {
		say(Failure, "driver", driverRemedy(err), "%v", err)
		return found
	}
	say(OK, "driver", "", "for CUDA %s", f.version)
	if f.hasBatch {
		say(OK, "batch copies", "", "the driver takes many copies in one call")
	} else {
		say(Warning, "batch copies", "Use a driver for CUDA 12.8 (570) or newer.",
			"the driver takes one copy a call: many small copies are slower, and use more of the processor")
	}
	if !f.writes64 {
		say(Warning, "call numbers", "Use a newer driver.", "the driver has no 64-bit stream writes: the engine's order is told by a host function")
	}
	if len(f.devices) == 0 {
		say(Failure, "devices", "Give the container its GPUs, and look at CUDA_VISIBLE_DEVICES.", "the driver sees no device")
	}
	for i := range f.devices {
		judgeDevice(&f.devices[i], say)
	}
	return found
}

func driverRemedy(err error) string {
	switch {
	case errors.Is(err, libcuda.ErrStub):
		return "Take the toolkit's stubs folder out of LD_LIBRARY_PATH, so that the driver's own library is found."
	case errors.Is(err, libcuda.ErrTooOld):
		return "Install a driver for CUDA " + libcuda.OldestVersion.String() + " or newer."
	case errors.Is(err, libcuda.ErrNoDriver):
		return "Install NVIDIA's driver; in a container, run it with the NVIDIA container runtime and with its GPUs. " +
			"Engines on CPUs, and engines that copy for themselves, need none."
	}
	return "Run nvidia-smi, and look at the kernel's log for Xid errors."
}

// Device attributes below these are told.
const oldestMajor, oldestMinor = 7, 5

func judgeDevice(d *deviceFacts, say func(l Level, name, remedy, detail string, args ...any)) {
	name := fmt.Sprintf("GPU %d", d.ordinal)
	if d.err != nil {
		say(Failure, name, "Run nvidia-smi, and look at the kernel's log for Xid errors.", "it does not say what it is: %v", d.err)
		return
	}
	a := d.attributes
	node := "unknown NUMA node"
	if n := a[libcuda.AttrHostNUMANode]; n >= 0 {
		node = fmt.Sprintf("NUMA node %d", n)
	}
	say(OK, name, "", "%s, %s, %s, %.1f GiB, sm_%d%d, %s, %d copy engines", d.name, d.uuid, d.pci,
		float64(d.memoryBytes)/(1<<30), a[libcuda.AttrMajor], a[libcuda.AttrMinor], node, a[libcuda.AttrCopyEngines])
	if major, minor := a[libcuda.AttrMajor], a[libcuda.AttrMinor]; major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		say(Failure, name, "Use a GPU of the Turing generation or newer.", "sm_%d%d is older than sm_%d%d", major, minor, oldestMajor, oldestMinor)
	}
	if a[libcuda.AttrHostRegister] == 0 {
		say(Failure, name, "", "it cannot lock host memory for copies")
	}
	if a[libcuda.AttrVMM] == 0 || a[libcuda.AttrPosixFD] == 0 {
		say(Warning, name, "Let the engine use the caching allocator without expandable segments and without sleep mode.",
			"memory of the virtual memory calls cannot be shared: only memory of cudaMalloc can")
	}
	if a[libcuda.AttrStreamMemOps64] == 0 {
		say(Warning, name, "", "it has no 64-bit stream operations: the engine's order is told by a host function, which holds its stream for a moment")
	}
}
