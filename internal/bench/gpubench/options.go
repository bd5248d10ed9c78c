package gpubench

import (
	"cmp"
	"fmt"

	"github.com/kvconn/kvconn/gpu/libcuda"
)

// Options say what [Run] measures. The zero value of a field means its default.
type Options struct {
	// Library is the driver's library. Default [libcuda.DefaultPath].
	Library string
	// GPU is the device's UUID. Default: the first that the driver shows.
	GPU string
	// Copier starts a copier process, as cuda.Options has it. Default: this program with the argument "copier".
	Copier []string
	// TotalBytes are copied each way in a round. Default 1 GiB. The GPU's memory and the host's are used for twice that.
	TotalBytes int64
	// Rounds of plain copies and of ours alternate; medians count. Default 5.
	Rounds int
	// BusyBytes is what each launch of the busy kernel moves, within the GPU's memory; a decode step has Launches. Default
	// 256 MiB and 32: some milliseconds on a GPU of a data centre.
	BusyBytes int64
	Launches  int
	// Steps are timed alone, beside loads, beside saves and beside both. Default 200.
	Steps int
	// Progress, if not nil, is called with what is measured next.
	Progress func(step string)
}

const (
	minTotalBytes = 1 << 20
	maxTotalBytes = 64 << 30
	maxBusyBytes  = 1 << 30
	// busyRunBytes is the length of a run of the busy kernel.
	busyRunBytes = 32 << 10
)

// EnsureDefaults fills in every field that is zero.
func (o *Options) EnsureDefaults() {
	o.Library = cmp.Or(o.Library, libcuda.DefaultPath)
	o.TotalBytes = cmp.Or(o.TotalBytes, 1<<30)
	o.Rounds = cmp.Or(o.Rounds, 5)
	o.BusyBytes = cmp.Or(o.BusyBytes, 256<<20)
	o.Launches = cmp.Or(o.Launches, 32)
	o.Steps = cmp.Or(o.Steps, 200)
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.TotalBytes < minTotalBytes || o.TotalBytes > maxTotalBytes:
		return fmt.Errorf("bench gpu: %d bytes each way: want %d to %d", o.TotalBytes, minTotalBytes, int64(maxTotalBytes))
	case o.Rounds < 1 || o.Steps < 1 || o.Launches < 1:
		return fmt.Errorf("bench gpu: %d rounds, %d steps of %d launches: want 1 or more", o.Rounds, o.Steps, o.Launches)
	case o.BusyBytes < busyRunBytes || o.BusyBytes > maxBusyBytes:
		return fmt.Errorf("bench gpu: a kernel that moves %d bytes: want %d to %d", o.BusyBytes, busyRunBytes, maxBusyBytes)
	}
	return nil
}

// shorten makes a run on the stand-in short: it shows that everything works, and nothing else.
func (o *Options) shorten() {
	o.TotalBytes = min(o.TotalBytes, 4<<20)
	o.Rounds = 1
	o.BusyBytes, o.Launches, o.Steps = min(o.BusyBytes, 2*busyRunBytes), min(o.Launches, 2), min(o.Steps, 3)
}
