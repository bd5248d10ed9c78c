package main

import (
	"context"
	"fmt"

	"github.com/kvconn/kvconn/internal/bench/workerbench"
	"github.com/kvconn/kvconn/internal/config"
)

// benchLoadCmd is `kvconnd bench load`.
type benchLoadCmd struct {
	Dir        string       `name:"dir" placeholder:"DIR" help:"Where the temporary files are made: on the disk to measure. Default: the system's directory for temporary files."`
	LayerBytes config.Bytes `name:"layer-bytes" default:"64KiB" placeholder:"SIZE" help:"Bytes of a block in each layer (default 64KiB)."`
	Layers     int          `name:"layers" default:"32" placeholder:"N" help:"Layers (default 32)."`
	TotalBytes config.Bytes `name:"total-bytes" default:"1GiB" placeholder:"SIZE" help:"Bytes that each round loads from disk (default 1GiB)."`
	Rounds     int          `name:"rounds" default:"5" placeholder:"N" help:"Rounds of limits and loads in turn; medians count (default 5)."`
	JSON       bool         `name:"json" help:"Print the result as JSON."`
}

// Validate reports what cannot be measured.
func (c *benchLoadCmd) Validate() error {
	return wantPositive(map[string]int64{
		"layer-bytes": int64(c.LayerBytes), "layers": int64(c.Layers), "total-bytes": int64(c.TotalBytes), "rounds": int64(c.Rounds),
	})
}

// Run measures loads into engine memory beside raw reads and plain copies.
func (c *benchLoadCmd) Run(ctx context.Context, std *streams) error {
	r, err := workerbench.Load(ctx, workerbench.LoadOptions{
		Dir: orTempDir(c.Dir), LayerBytes: int(c.LayerBytes), Layers: c.Layers, TotalBytes: int64(c.TotalBytes), Rounds: c.Rounds,
		Progress: func(step string) { fmt.Fprintln(std.err, step) },
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(std.out, r)
	}
	const gib = 1 << 30
	line := func(name string, f *workerbench.Figures) {
		fmt.Fprintf(std.out, "%-22s %6.2f GiB/s of %6.2f raw: %.3f   %6.2f GiB/s of %6.2f memcpy: %.3f   %.2f CPU s/GiB\n", name,
			f.LoadBytesPerS/gib, f.RawReadBytesPerS/gib, f.DiskRatio, f.HostBytesPerS/gib, f.PieceMemcpyBytesPerS/gib, f.HostRatio, f.LoadCPUSPerGiB)
	}
	fmt.Fprintf(std.out, "blocks of %s, %s a round; medians; verified loads into shared memory\n%-22s %-32s %s\n",
		config.Bytes(r.BlockBytes), c.TotalBytes, "", "from disk", "from the host tier")
	line(fmt.Sprintf("%d pieces of %s", c.Layers, c.LayerBytes), &r.Figures)
	line("one piece", &r.Contiguous)
	return nil
}
