package bench

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/kvconn/kvconn/internal/bench/objectbench"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
)

type objectCmd struct {
	Object         string        `name:"object" placeholder:"URL" help:"Bucket to measure, s3://BUCKET or s3://BUCKET/PREFIX: what the bench writes is deleted at its end. Default: a server in memory."`
	ObjectEndpoint string        `name:"object-endpoint" placeholder:"URL" help:"Server of the bucket, such as https://HOST:PORT. Default: AWS."`
	ObjectRegion   string        `name:"object-region" placeholder:"REGION" help:"Region of the bucket. Default: AWS_REGION, else the server is asked."`
	ObjectStyle    string        `name:"object-style" placeholder:"STYLE" help:"Where the bucket's name stands in URLs: auto, path or virtual (default auto)."`
	ObjectCA       string        `name:"object-ca" placeholder:"FILE" help:"File with roots in PEM that the server is verified by, beside those of the system."`
	Block          config.Bytes  `name:"block" default:"2MiB" placeholder:"SIZE" help:"Size of a record (default 2MiB)."`
	TotalBytes     config.Bytes  `name:"total-bytes" default:"256MiB" placeholder:"SIZE" help:"Bytes that each round writes and reads (default 256MiB)."`
	Rounds         int           `name:"rounds" default:"3" placeholder:"N" help:"Rounds of raw and measured requests in turn; medians count (default 3)."`
	Connections    int           `name:"connections" default:"8" placeholder:"N" help:"Connections that records are fetched with (default 8)."`
	LinkBytesPerS  *config.Bytes `name:"link-bytes-per-s" placeholder:"SIZE" help:"What goes through the connections of the server in memory in a second, in each direction, as through a network. 0 is no limit, so that the processors are the limit. Default: 3125MB, 25 Gbit/s."`
	Uploads        int           `name:"uploads" default:"4" placeholder:"N" help:"Objects that are written at one time (default 4)."`
	Records        int           `name:"records" default:"1000000" placeholder:"N" help:"Records that a node joins with, and in the indexes (default 1000000)."`
	JSON           bool          `name:"json" help:"Print the result as JSON."`
}

// Validate reports what cannot be measured.
func (c *objectCmd) Validate() error {
	return terminal.WantPositive(map[string]float64{
		"block": float64(c.Block), "total-bytes": float64(c.TotalBytes), "rounds": float64(c.Rounds),
		"connections": float64(c.Connections), "uploads": float64(c.Uploads), "records": float64(c.Records),
	})
}

// linkBytesPerS is the limit of the server in memory: a bucket has a network of its own.
func (c *objectCmd) linkBytesPerS() int64 {
	switch {
	case c.LinkBytesPerS != nil:
		return int64(*c.LinkBytesPerS)
	case c.Object != "":
		return 0
	}
	const gbit = 1e9 / 8
	return 25 * gbit // the network of a usual node
}

// Run measures against a bucket, or a server in a process of its own.
func (c *objectCmd) Run(ctx context.Context, std *terminal.Streams) error {
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	r, err := objectbench.Run(ctx, objectbench.Options{
		URL: c.Object, Endpoint: c.ObjectEndpoint, Style: c.ObjectStyle, Region: c.ObjectRegion, CAFile: c.ObjectCA,
		ServerCommand: []string{executable, "bench", "server"},
		BlockBytes:    int(c.Block), TotalBytes: int64(c.TotalBytes), Rounds: c.Rounds,
		LinkBytesPerS: c.linkBytesPerS(), Connections: c.Connections, Uploads: c.Uploads, Records: c.Records,
		Progress: func(step string) { fmt.Fprintln(std.Err, step) },
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, r)
	}
	return printObjectBench(std.Out, &r)
}

func printObjectBench(out io.Writer, r *objectbench.Result) error {
	const gib = 1 << 30
	server := r.Server
	if r.LinkBytesPerS > 0 {
		server += fmt.Sprintf(", %s/s each way", config.Bytes(r.LinkBytesPerS))
	}
	fmt.Fprintf(out, "records of %s, %s a round; medians; server: %s\n%-11s %-44s %s\n", config.Bytes(r.BlockBytes), config.Bytes(r.RoundBytes), server,
		"", fmt.Sprintf("build and PUT, %d at one time", r.Uploads), fmt.Sprintf("verified GET, %d connections", r.Connections))
	pair := func(p *objectbench.Pair) string {
		return fmt.Sprintf("%5.2f of %5.2f GiB/s: %.3f, CPU %.2f of %.2f", p.BytesPerS/gib, p.RawBytesPerS/gib, p.Ratio, p.CPUSPerGiB, p.RawCPUSPerGiB)
	}
	for i := range r.Forms {
		f := &r.Forms[i]
		fmt.Fprintf(out, "%-11s %-44s %s, stored %.2f\n", f.Name, pair(&f.Upload), pair(&f.Fetch), f.StoredRatio)
	}
	q := &r.Requests
	_, err := fmt.Fprintf(out, `GET, then copied          %s
requests for 1 GiB        %.0f PUT, %.0f GET; for 8 MiB %.2f and %.2f; %.2f GET for each range wanted
look-up of %d keys      %.3f ms (p99 %.3f ms), disk tier's index %.3f ms (p99 %.3f ms), %.2f times that; %d requests
join with %d records %.3f s, %.3f s of processor time, %d requests, %d parts
memory a record           %.1f B; %.1f B in lists
`, pair(&r.FetchCopied), q.PutsPerGiB, q.GetsPerGiB, q.PutsPer8MiB, q.GetsPer8MiB, q.GetsPerRange,
		r.Chain, 1e3*r.LookupSeconds, 1e3*r.LookupP99Seconds, 1e3*r.DiskLookupSeconds, 1e3*r.DiskLookupP99Seconds, r.LookupRatio, r.LookupRequests,
		r.Records, r.JoinSeconds, r.JoinCPUSeconds, r.JoinRequests, r.Parts, r.BytesPerRecord, r.ListBytesPerRecord)
	return err
}

// serverCmd is the process of the server in memory. It serves bench object only, and is hidden.
type serverCmd struct {
	MaxBytes      int64 `arg:"" help:"Bytes that objects may take."`
	LinkBytesPerS int64 `arg:"" help:"Bytes a second in each direction; 0 is no limit."`
}

// Run serves until standard input ends.
func (c *serverCmd) Run(ctx context.Context, std *terminal.Streams) error {
	return objectbench.Serve(ctx, c.MaxBytes, c.LinkBytesPerS, std.In, std.Out)
}
