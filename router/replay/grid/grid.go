// Package grid compares routing policies on generated agents over a grid of machines and loads, from idle to
// beyond saturation.
package grid

import (
	"context"
	"fmt"

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
		row.Times = append(row.Times, r.TTFT)
	}
	return row, nil
}

// Seeds simulates a cell with each policy and n seeds of the agents, from the cell's own on. Errors are those of [Run].
func Seeds(ctx context.Context, c Cell, requests int, policies []string, n int) (Rows, error) {
	var rows Rows
	for range n {
		row, err := Run(ctx, c, requests, policies)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
		c.Seed++
	}
	return rows, nil
}
