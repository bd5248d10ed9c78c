package gpu

import "os"

// DeviceStatus is what is known of one device that engines have memory on.
type DeviceStatus struct {
	// UUID names the device the same in every process.
	UUID string `json:"uuid" label:"gpu"`
	Name string `json:"name"`
	// Driver is the CUDA version that the driver is for, such as 12.8.
	Driver string `json:"driver"`
	// NUMANode is the host's node that the device is next to, -1 if that is unknown.
	NUMANode int `json:"numa_node"`
	// FreeBytes and TotalBytes are the device's memory when its copier started.
	FreeBytes  int64 `json:"free_bytes"`
	TotalBytes int64 `json:"total_bytes"`
	// PinnedBytes of the host tier are locked for the device's copies; its copier locks them as it serves. PinError is why
	// it could not lock all: copies of the rest go through the driver's own buffer, several times slower.
	PinnedBytes int64  `json:"pinned_bytes" metric:"pinned_bytes" help:"Bytes of the host tier that are locked for this GPU's copies. Copies of the rest are slower."`
	PinError    string `json:"pin_error,omitempty"`
	// Running is set while the device's copier runs. Starts counts all that were started.
	Running bool   `json:"running" metric:"copier_running" help:"1 while the process that copies for this GPU runs."`
	Starts  uint64 `json:"starts" metric:"copier_starts_total" help:"Times that the process that copies for this GPU was started. More than one means that its driver failed or hung."`
	// Batches, LoadedBytes and SavedBytes were copied.
	Batches     uint64 `json:"batches" metric:"batches_total" help:"Batches of copies that succeeded, by GPU."`
	LoadedBytes uint64 `json:"loaded_bytes" metric:"loaded_bytes_total" help:"Bytes copied to this GPU."`
	SavedBytes  uint64 `json:"saved_bytes" metric:"saved_bytes_total" help:"Bytes copied from this GPU."`
	// KernelBatches of the batches had their runs moved by a kernel. KernelError is why none can be.
	KernelBatches uint64 `json:"kernel_batches" metric:"kernel_batches_total" help:"Batches of copies whose small pieces a kernel gathered or scattered."`
	KernelError   string `json:"kernel_error,omitempty"`
	// Copies are the kinds of copies for which it is known which way is faster.
	Copies []CopyStatus `json:"copies,omitempty"`
	// LastError is why the last copier ended, or why none could be started.
	LastError string `json:"last_error,omitempty"`
}

// CopyStatus is what was learnt of copies of about the same number and size of runs.
type CopyStatus struct {
	// Direction is load or save.
	Direction string `json:"direction"`
	// RunBytes and Runs are the least of their kind, which goes up to twice each.
	RunBytes int `json:"run_bytes"`
	Runs     int `json:"runs"`
	// By is how they are copied: batch or kernel.
	By              string  `json:"by"`
	BatchBytesPerS  float64 `json:"batch_bytes_per_s"`
	KernelBytesPerS float64 `json:"kernel_bytes_per_s"`
}

// DeviceLister is a driver that has devices to show.
type DeviceLister interface {
	// Devices lists those that engines have registered memory on, by UUID.
	Devices() []DeviceStatus
}

// Holder is a driver that has another process copy, which may outlive this one for a moment. An engine takes the end of its
// connection for the proof that its memory is not touched any more, so the process that copies holds the connection too.
type Holder interface {
	// OpenHolding is [Driver.Open] for an engine at the other end of a connection, a socket, which the caller may close
	// afterwards. Whatever becomes of this process, the connection does not end before the last copy. A peer that is to
	// see the end of a connection sooner, as in order, needs shutdown(2).
	OpenHolding(files []*os.File, connection *os.File) (Memory, error)
}

// Quitter is a driver whose Open may wait long for a device.
type Quitter interface {
	// Quit has calls of Open that wait for a device fail, now and later. Memory that is open stays so. It may be called
	// from any goroutine, any number of times.
	Quit()
}
