// Package grid compares routing policies on generated agents over a grid of machines and loads, from idle to
// beyond saturation.
package grid

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/kvconn/kvconn/router/replay"
	"github.com/kvconn/kvconn/router/replay/agents"
)

// Cell is one setting of the grid: machines, and the agents that they serve.
type Cell struct {
	// DiskBytesPerS is the read bandwidth of a node's disk, BytesPerToken the size of a token's KV.
	DiskBytesPerS, BytesPerToken float64
	// GPUBlocks is the cache of each rank, Nodes the number of nodes that the 8 ranks are spread over.
	GPUBlocks, Nodes int
	// Load is the rate of arrivals, as a part of the rate that the fleet can serve if every reused token is read
	// from disk and all others are computed. GPU caches can make more than 1 possible.
	Load float64
	// Seed chooses the agents.
	Seed uint32
}

// Axes are the values that a grid takes.
type Axes struct {
	DiskBytesPerS, BytesPerToken []float64
	GPUBlocks, Nodes             []int
	Load                         []float64
}

// Documented returns the grid of docs/replay.md, 64 cells.
func Documented() Axes {
	return Axes{
		DiskBytesPerS: []float64{1e9, 6e9}, BytesPerToken: []float64{40 << 10, 128 << 10},
		GPUBlocks: []int{1000, 4000}, Nodes: []int{1, 4}, Load: []float64{0.1, 0.9, 2, 4},
	}
}

// Whole returns a finer grid, 576 cells.
func Whole() Axes {
	return Axes{
		DiskBytesPerS: []float64{1e9, 3e9, 6e9, 12e9}, BytesPerToken: []float64{40 << 10, 128 << 10},
		GPUBlocks: []int{800, 1500, 4000}, Nodes: []int{1, 2, 4, 8}, Load: []float64{0.1, 0.5, 0.9, 1.3, 2, 4},
	}
}

// Requests is how many requests a cell of the documented grid has.
const Requests = 1500

// Cells returns all combinations, the load changing fastest.
func (a Axes) Cells() []Cell {
	var out []Cell
	for _, bytes := range a.BytesPerToken {
		for _, disk := range a.DiskBytesPerS {
			for _, nodes := range a.Nodes {
				for _, gpu := range a.GPUBlocks {
					for _, load := range a.Load {
						out = append(out, Cell{DiskBytesPerS: disk, BytesPerToken: bytes, GPUBlocks: gpu, Nodes: nodes, Load: load})
					}
				}
			}
		}
	}
	return out
}

// Options returns the machines of a cell.
func (c *Cell) Options() replay.Options {
	o := replay.Options{Nodes: c.Nodes, GPUBlocks: c.GPUBlocks, BytesPerToken: c.BytesPerToken, DiskBytesPerS: c.DiskBytesPerS}
	o.EnsureDefaults()
	return o
}

// Agents returns the agents of a cell, a number of requests.
func (c *Cell) Agents(requests int) agents.Options {
	o := agents.Options{Requests: requests, Seed: c.Seed}
	o.EnsureDefaults()
	o.RequestsPerS = c.Load * agents.Rate(c.Options(), o)
	return o
}

// Row is the result of a cell, by policy in the sequence in which they were named.
type Row struct {
	Cell    Cell
	Results []*replay.Result
}

// Run simulates a cell with each policy. Errors are those of [replay.Run].
func Run(ctx context.Context, c Cell, requests int, policies []string) (Row, error) {
	t, err := agents.Generate(c.Agents(requests))
	if err != nil {
		return Row{}, err
	}
	row, o := Row{Cell: c}, c.Options()
	for _, name := range policies {
		p, err := replay.NewPolicy(name, &o)
		if err != nil {
			return Row{}, err
		}
		r, err := replay.Simulate(ctx, t, o, p, nil)
		if err != nil {
			return Row{}, fmt.Errorf("%s: %w", name, err)
		}
		r.Policy = name
		row.Results = append(row.Results, r)
	}
	return row, nil
}

// Worse returns how much longer the mean and the 95th percentile of the time to first token of the last policy are
// than the best of the others, as parts: 0.1 is 10% longer.
func (r *Row) Worse() (mean, p95 float64) {
	bestMean, bestP95 := r.best()
	last := r.Results[len(r.Results)-1]
	return last.TTFT.Mean/bestMean - 1, last.TTFT.P95/bestP95 - 1
}

// much is by how much a policy may be worse than the best other one.
const much = 0.1

// String is the row of a table: the cell, mean / 95th percentile of the best other policy and of the last one, in seconds,
// in bold type where that one is worse by more than 10%.
func (r *Row) String() string {
	c, last, mark := &r.Cell, r.Results[len(r.Results)-1], ""
	if mean, p95 := r.Worse(); mean > much || p95 > much {
		mark = "**"
	}
	mean, p95 := r.best()
	return fmt.Sprintf("| %.0f KiB | %.0f GB/s | %d | %d | %g | %s / %s | %s%s / %s%s |", c.BytesPerToken/1024, c.DiskBytesPerS/1e9, c.Nodes, c.GPUBlocks, c.Load,
		short(mean), short(p95), mark, short(last.TTFT.Mean), short(last.TTFT.P95), mark)
}

// short writes seconds with three digits.
func short(s float64) string {
	switch {
	case s >= 99.95:
		return fmt.Sprintf("%.0f", s)
	case s >= 9.995:
		return fmt.Sprintf("%.1f", s)
	case s >= 0.9995:
		return fmt.Sprintf("%.2f", s)
	}
	return strings.TrimPrefix(fmt.Sprintf("%.3f", s), "0")
}

// best returns the least mean and the least 95th percentile of all policies but the last.
func (r *Row) best() (mean, p95 float64) {
	mean, p95 = math.Inf(1), math.Inf(1)
	for _, other := range r.Results[:len(r.Results)-1] {
		mean, p95 = min(mean, other.TTFT.Mean), min(p95, other.TTFT.P95)
	}
	return mean, p95
}
