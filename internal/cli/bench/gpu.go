package bench

import (
	"context"
	"fmt"

	"github.com/kvconn/kvconn/internal/bench/gpubench"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
)

type gpuCmd struct {
	CUDALibrary string       `name:"cuda-library" default:"${cudaLibrary}" placeholder:"LIBRARY" help:"The driver's library: a name that the loader finds, or a path (default ${default})."`
	GPU         string       `name:"gpu" placeholder:"UUID" help:"The GPU, as nvidia-smi -L names it. Default: the first that the driver shows."`
	TotalBytes  config.Bytes `name:"total-bytes" default:"1GiB" placeholder:"SIZE" help:"Bytes that each round copies each way (default 1GiB). Twice that is taken of the GPU's memory, and locked of the host's."`
	Rounds      int          `name:"rounds" default:"5" placeholder:"N" help:"Rounds of plain copies and of ours in turn; medians count (default 5)."`
	Steps       int          `name:"steps" default:"200" placeholder:"N" help:"Decode steps that are timed alone, and beside copies each way and both (default 200)."`
	JSON        bool         `name:"json" help:"Print the result as JSON."`
}

// Help says what the command does to the GPU.
func (*gpuCmd) Help() string {
	return `Copies blocks between a GPU and host memory through a copier, as the daemon does, and compares
every byte. The limit is that of large copies of locked memory in the same round. A decode step is
a kernel of some milliseconds that is bound by the GPU's memory. Run it on a GPU that does nothing
else. The exit status is not 0 if a byte was wrong.`
}

// Validate reports what cannot be measured.
func (c *gpuCmd) Validate() error {
	return terminal.WantPositive(map[string]float64{"total-bytes": float64(c.TotalBytes), "rounds": float64(c.Rounds), "steps": float64(c.Steps)})
}

// Run plays an engine beside a copier.
func (c *gpuCmd) Run(ctx context.Context, std *terminal.Streams) error {
	r, err := gpubench.Run(ctx, gpubench.Options{
		Library: c.CUDALibrary, GPU: c.GPU, TotalBytes: int64(c.TotalBytes), Rounds: c.Rounds, Steps: c.Steps,
		Progress: func(step string) { fmt.Fprintln(std.Err, step) },
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, r)
	}
	return r.Print(std.Out)
}
