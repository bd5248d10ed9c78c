package grid

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/docs"
)

// policies are those that kvconnd replay compares, cost last.
func policies() []string {
	return []string{"round-robin", "load", "kv-aware", "kv-aware-gpu", "conversation", "first-turn", "cost"}
}

// Cells in which the disk is the bottleneck, or nothing is: the part of the grid that every run of the tests
// simulates. Results do not depend on the machine.
func TestCostIsNeverMuchWorseThanTheBestOther(t *testing.T) {
	cells := []Cell{
		{DiskBytesPerS: 6e9, GPUBlocks: 1000, Nodes: 1, Load: 0.1},
		{DiskBytesPerS: 6e9, GPUBlocks: 1000, Nodes: 1, Load: 0.9},
		{DiskBytesPerS: 6e9, GPUBlocks: 1000, Nodes: 1, Load: 4},
		{DiskBytesPerS: 6e9, GPUBlocks: 4000, Nodes: 4, Load: 4},
		{DiskBytesPerS: 1e9, GPUBlocks: 4000, Nodes: 1, Load: 0.1},
		{DiskBytesPerS: 12e9, GPUBlocks: 4000, Nodes: 2, Load: 6},
	}
	if testing.Short() {
		cells = cells[1:2]
	}
	requests := 1000
	if os.Getenv("KVCONN_GRID") == "whole" { // takes a quarter of an hour of one core
		cells, requests = Whole().Cells(), Requests
	}
	for _, c := range cells {
		if c.BytesPerToken == 0 {
			c.BytesPerToken = 128 << 10
		}
		row, err := Run(t.Context(), c, requests, policies())
		if err != nil {
			t.Fatal(err)
		}
		t.Log(row.String())
		if mean, p95 := row.Worse(); mean > much || p95 > much {
			t.Errorf("%+v: the mean of cost is %.0f%% above the best other, p95 %.0f%%", c, 100*mean, 100*p95)
		}
	}
}

// The table of docs/replay.md.
func TestTheDocumentedGrid(t *testing.T) {
	if os.Getenv("KVCONN_GRID") != "documented" {
		t.Skip("KVCONN_GRID=documented simulates all cells, for some minutes")
	}
	worse := 0
	for _, c := range Documented().Cells() {
		row, err := Run(t.Context(), c, Requests, policies())
		if err != nil {
			t.Fatal(err)
		}
		docs.Says(t, "replay.md", row.String())
		if mean, p95 := row.Worse(); mean > much || p95 > much {
			worse++
		}
	}
	docs.Says(t, "replay.md", fmt.Sprintf("Now it is so in the %d in bold type.", worse))
}

// The table of docs/replay.md over several seeds, for cells in which chance decides much.
func TestCellsOverSeeds(t *testing.T) {
	if os.Getenv("KVCONN_GRID") != "seeds" {
		t.Skip("KVCONN_GRID=seeds simulates three cells, for a minute")
	}
	const seeds = 6
	for _, c := range []Cell{
		{DiskBytesPerS: 6e9, BytesPerToken: 40 << 10, GPUBlocks: 1000, Nodes: 4, Load: 4},
		{DiskBytesPerS: 6e9, BytesPerToken: 40 << 10, GPUBlocks: 4000, Nodes: 4, Load: 4},
		{DiskBytesPerS: 1e9, BytesPerToken: 128 << 10, GPUBlocks: 1000, Nodes: 1, Load: 4},
	} {
		mean, p95 := 0.0, 0.0
		for c.Seed = range uint32(seeds) {
			row, err := Run(t.Context(), c, Requests, policies())
			if err != nil {
				t.Fatal(err)
			}
			m, p := row.Worse()
			mean, p95 = mean+math.Log(1+m)/seeds, p95+math.Log(1+p)/seeds
		}
		docs.Says(t, "replay.md", fmt.Sprintf("| %.0f KiB | %.0f GB/s | %d | %d | %g | %.2f | %.2f |", c.BytesPerToken/1024, c.DiskBytesPerS/1e9,
			c.Nodes, c.GPUBlocks, c.Load, math.Exp(mean), math.Exp(p95)))
	}
}

func TestAGridHasAllCombinations(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Documented().Cells() {
		o := c.Options()
		if err := o.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		seen[fmt.Sprint(c)] = true
	}
	if n, whole := len(seen), len(Whole().Cells()); n != 64 || whole != 576 {
		t.Errorf("%d and %d cells", n, whole)
	}
	if _, err := Run(t.Context(), Cell{Nodes: 3}, 10, policies()); err == nil {
		t.Error("a cell that cannot work was simulated")
	}
	if _, err := Run(t.Context(), Documented().Cells()[0], 10, slices.Insert(policies(), 0, "none")); err == nil {
		t.Error("a policy that there is none of was simulated")
	}
}
