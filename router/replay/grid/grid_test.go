package grid

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

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
	for _, c := range cells {
		if c.BytesPerToken == 0 {
			c.BytesPerToken = 128 << 10
		}
		rows, err := Seeds(t.Context(), c, 1000, policies(), 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(rows.String())
		if mean, p95 := rows.Worse(); muchWorse(mean, p95) {
			t.Errorf("%+v: the mean of cost is %.0f%% above the best other, p95 %.0f%%", c, 100*mean, 100*p95)
		}
	}
}

// The tables of docs/replay.md. Chance decides much in a cell whose GPUs are full or whose queues grow: each has several
// seeds, with which the best other policy is another one.
func TestTheDocumentedGrid(t *testing.T) {
	if os.Getenv("KVCONN_GRID") != "documented" {
		t.Skip("KVCONN_GRID=documented simulates all cells with all seeds, for some minutes")
	}
	all := simulate(t, Documented().Cells(), 12)
	worstMean, worstP95 := 0.0, 0.0
	runs := make([]int, len(policies())) // worse than the best other, by policy
	for _, rows := range all {
		docs.Says(t, "replay.md", rows.String())
		mean, p95 := rows.Worse()
		worstMean, worstP95 = max(worstMean, mean), max(worstP95, p95)
		for at := range rows {
			for i := range runs {
				if muchWorse(rows[at].Worse(i)) {
					runs[i]++
				}
			}
		}
	}
	docs.Says(t, "replay.md", fmt.Sprintf("at most %.1f%% longer in the mean and %.1f%% in the p95", 100*worstMean, 100*worstP95))
	for i, name := range policies() {
		docs.Says(t, "replay.md", fmt.Sprintf("| `%s` | %d |", name, runs[i]))
	}
	if muchWorse(worstMean, worstP95) {
		t.Errorf("cost is worse than the best other by %.0f%% in the mean, %.0f%% in the p95", 100*worstMean, 100*worstP95)
	}
}

// simulate runs all policies in all cells, as many cells at once as there are processors.
func simulate(t *testing.T, cells []Cell, seeds int) []Rows {
	t.Helper()
	all := make([]Rows, len(cells))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range cells {
		g.Go(func() (err error) {
			all[i], err = Seeds(t.Context(), cells[i], Requests, policies(), seeds)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return all
}

// A finer grid, to look for cells that the documented one does not show: those that are worse with two seeds are looked at with twelve.
func TestTheWholeGrid(t *testing.T) {
	if os.Getenv("KVCONN_GRID") != "whole" {
		t.Skip("KVCONN_GRID=whole simulates all cells of the finer grid, for ten minutes of two cores")
	}
	var again []Cell
	for _, rows := range simulate(t, Whole().Cells(), 2) {
		if muchWorse(rows.Worse()) {
			again = append(again, rows[0].Cell)
		}
	}
	for _, rows := range simulate(t, again, 12) {
		if t.Log(rows.String()); muchWorse(rows.Worse()) {
			docs.Says(t, "replay.md", rows.String())
		}
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
