package gpu

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
	// Running is set while the device's copier runs. Starts counts all that were started.
	Running bool   `json:"running" metric:"copier_running" help:"1 while the process that copies for this GPU runs."`
	Starts  uint64 `json:"starts" metric:"copier_starts_total" help:"Processes started that copy for this GPU. More than one says that its driver failed or hung."`
	// Batches, LoadedBytes and SavedBytes were copied.
	Batches     uint64 `json:"batches" metric:"batches_total" help:"Batches of copies that ended well, by GPU."`
	LoadedBytes uint64 `json:"loaded_bytes" metric:"loaded_bytes_total" help:"Bytes copied to this GPU."`
	SavedBytes  uint64 `json:"saved_bytes" metric:"saved_bytes_total" help:"Bytes copied from this GPU."`
	// LastError is why the last copier ended, or why none could be started.
	LastError string `json:"last_error,omitempty"`
}

// DeviceLister is a driver that has devices to show.
type DeviceLister interface {
	// Devices lists those that engines have registered memory on, by UUID.
	Devices() []DeviceStatus
}

// Quitter is a driver whose Open may wait long for a device.
type Quitter interface {
	// Quit has calls of Open that wait for a device fail, now and later. Memory that is open stays so. It may be called
	// from any goroutine, any number of times.
	Quit()
}
