package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/libcuda"
)

// Options of a [Driver]. The zero value of a field means its default.
type Options struct {
	// Command starts a copier: the program and its arguments, to which the GPU's UUID is added for those who look at
	// processes. Its control socket is file descriptor 3. By default it is this program with the argument "copier".
	Command []string
	// Library is the driver's library; [libcuda.DefaultPath] by default.
	Library string
	// Host opens the memory of engines that pass shared memory. By default that is [gpu.HostDriver].
	Host gpu.Driver
	// StartTimeout bounds the start of a copier: the driver's start takes seconds on a machine with many GPUs, and ten and
	// more without NVIDIA's persistence daemon. OpenTimeout bounds the opening and closing of an engine's memory.
	StartTimeout, OpenTimeout time.Duration
	// CopyTimeout bounds a batch from the moment that the copier has it. When it has passed, the copier is killed: its
	// copies cannot be called back. A batch of 4 MiB takes 0.1 ms; others queue before it.
	CopyTimeout time.Duration
	// QuitTimeout takes the place of OpenTimeout and CopyTimeout, where they are longer, once the driver has been told to
	// quit: a copier that hangs must not hold the daemon's end. It leaves time for the copies under way.
	QuitTimeout time.Duration
	// RestartPause is the shortest time between a copier's end and the next start. It doubles up to RestartPauseMax while
	// copiers end soon after their start, so that a GPU that has fallen off its bus costs little. One that served for longer
	// than RestartPauseMax is replaced at once.
	RestartPause, RestartPauseMax time.Duration
	Logger                        *slog.Logger
	// self is set if Command is this program: its file may be replaced by another version while this one runs.
	self bool
}

// Defaults.
const (
	defaultStartTimeout    = time.Minute
	defaultOpenTimeout     = 20 * time.Second
	defaultCopyTimeout     = 5 * time.Second
	defaultQuitTimeout     = 2 * time.Second
	defaultRestartPause    = time.Second
	defaultRestartPauseMax = time.Minute
)

// withDefaults fills in what is not set.
func (o Options) withDefaults() (Options, error) {
	if len(o.Command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("find this program, which copiers are started from: %w", err)
		}
		o.Command, o.self = []string{self, "copier"}, true
	}
	if o.Library == "" {
		o.Library = libcuda.DefaultPath
	}
	if o.Host == nil {
		o.Host = new(gpu.HostDriver)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		value *time.Duration
		other time.Duration
	}{
		{&o.StartTimeout, defaultStartTimeout}, {&o.OpenTimeout, defaultOpenTimeout}, {&o.CopyTimeout, defaultCopyTimeout},
		{&o.QuitTimeout, defaultQuitTimeout},
		{&o.RestartPause, defaultRestartPause}, {&o.RestartPauseMax, defaultRestartPauseMax},
	} {
		if *d.value == 0 {
			*d.value = d.other
		}
	}
	return o, nil
}

// Validate reports what cannot be.
func (o *Options) Validate() error {
	for _, d := range []time.Duration{o.StartTimeout, o.OpenTimeout, o.CopyTimeout, o.QuitTimeout, o.RestartPause, o.RestartPauseMax} {
		if d < 0 {
			return errors.New("a time of a GPU's copier is negative")
		}
	}
	return nil
}
