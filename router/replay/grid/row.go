package grid

import (
	"fmt"
	"math"

	"github.com/kvconn/kvconn/router/replay"
)

// Row is the result of a cell: times to first token by policy, in the sequence in which these were named.
type Row struct {
	Cell  Cell
	Times []replay.Times
}

// Worse returns how much longer the mean and the 95th percentile of the time to first token of the i-th policy are
// than the best of the others, as parts: 0.1 is 10% longer.
func (r *Row) Worse(i int) (mean, p95 float64) { return over(r.Times[i], r.best(i)) }

// best has the least mean and the least 95th percentile of all policies but the i-th, and nothing else.
func (r *Row) best(i int) replay.Times {
	best := replay.Times{Mean: math.Inf(1), P95: math.Inf(1)}
	for at, t := range r.Times {
		if at != i {
			best.Mean, best.P95 = min(best.Mean, t.Mean), min(best.P95, t.P95)
		}
	}
	return best
}

// over returns by how much times are longer than others, as parts.
func over(t, other replay.Times) (mean, p95 float64) {
	return t.Mean/other.Mean - 1, t.P95/other.P95 - 1
}

// Rows are the results of one cell with several seeds. What is said of them are geometric means.
type Rows []Row

// muchWorse says whether a policy is worse than the best other one by more than it may be, 10%.
func muchWorse(mean, p95 float64) bool { return max(mean, p95) > 0.1 }

// Worse is [Row.Worse] of the last policy, against the policy that was the best with each seed.
func (r Rows) Worse() (mean, p95 float64) { return over(r.times(), r.bests()) }

// String is the line of a table: the cell, mean / 95th percentile of the best other policy and of the last one, in seconds,
// in bold type where that one is worse by more than 10%.
func (r Rows) String() string {
	c, mark := &r[0].Cell, ""
	if muchWorse(r.Worse()) {
		mark = "**"
	}
	return fmt.Sprintf("| %.0f KiB | %.0f GB/s | %d | %d | %g | %s | %s%s%s |", c.BytesPerToken/1024, c.DiskBytesPerS/1e9, c.Nodes, c.GPUBlocks, c.Load,
		r.bests().Short(), mark, r.times().Short(), mark)
}

// times are the last policy's, bests those of the best other policy: means and 95th percentiles.
func (r Rows) times() replay.Times {
	return r.mean(func(row *Row) replay.Times { return row.Times[len(row.Times)-1] })
}

func (r Rows) bests() replay.Times {
	return r.mean(func(row *Row) replay.Times { return row.best(len(row.Times) - 1) })
}

func (r Rows) mean(of func(*Row) replay.Times) replay.Times {
	mean, p95 := 0.0, 0.0 // logarithms
	for i := range r {
		t := of(&r[i])
		mean += math.Log(t.Mean) / float64(len(r))
		p95 += math.Log(t.P95) / float64(len(r))
	}
	return replay.Times{Mean: math.Exp(mean), P95: math.Exp(p95)}
}
