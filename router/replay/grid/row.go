package grid

import (
	"fmt"
	"math"
	"strings"

	"github.com/kvconn/kvconn/router/replay"
)

// Row is the result of a cell: times to first token by policy, in the sequence in which these were named.
type Row struct {
	Cell  Cell
	Times []replay.Times
}

// Worse returns how much longer the mean and the 95th percentile of the time to first token of the i-th policy are
// than the best of the others, as parts: 0.1 is 10% longer.
func (r *Row) Worse(i int) (mean, p95 float64) {
	bestMean, bestP95 := r.best(i)
	return r.Times[i].Mean/bestMean - 1, r.Times[i].P95/bestP95 - 1
}

// best returns the least mean and the least 95th percentile of all policies but the i-th.
func (r *Row) best(i int) (mean, p95 float64) {
	mean, p95 = math.Inf(1), math.Inf(1)
	for at, t := range r.Times {
		if at != i {
			mean, p95 = min(mean, t.Mean), min(p95, t.P95)
		}
	}
	return mean, p95
}

// Rows are the results of one cell with several seeds. What is said of them are geometric means.
type Rows []Row

// much is by how much a policy may be worse than the best other one.
const much = 0.1

// Worse is [Row.Worse] of the last policy, against the policy that was the best with each seed.
func (r Rows) Worse() (mean, p95 float64) {
	return r.times().over(r.bests())
}

// String is the line of a table: the cell, mean / 95th percentile of the best other policy and of the last one, in seconds,
// in bold type where that one is worse by more than 10%.
func (r Rows) String() string {
	c, best, last, mark := &r[0].Cell, r.bests(), r.times(), ""
	if mean, p95 := last.over(best); mean > much || p95 > much {
		mark = "**"
	}
	return fmt.Sprintf("| %.0f KiB | %.0f GB/s | %d | %d | %g | %s | %s%s%s |", c.BytesPerToken/1024, c.DiskBytesPerS/1e9, c.Nodes, c.GPUBlocks, c.Load,
		best, mark, last, mark)
}

// times are the last policy's, bests those of the best other policy.
func (r Rows) times() pair {
	return r.mean(func(row *Row) (mean, p95 float64) {
		t := &row.Times[len(row.Times)-1]
		return t.Mean, t.P95
	})
}

func (r Rows) bests() pair {
	return r.mean(func(row *Row) (mean, p95 float64) { return row.best(len(row.Times) - 1) })
}

func (r Rows) mean(of func(*Row) (mean, p95 float64)) pair {
	var logs pair
	for i := range r {
		mean, p95 := of(&r[i])
		logs.mean += math.Log(mean) / float64(len(r))
		logs.p95 += math.Log(p95) / float64(len(r))
	}
	return pair{math.Exp(logs.mean), math.Exp(logs.p95)}
}

// pair is a mean and a 95th percentile, in seconds.
type pair struct{ mean, p95 float64 }

// over returns by how much p is longer than other, as parts.
func (p pair) over(other pair) (mean, p95 float64) { return p.mean/other.mean - 1, p.p95/other.p95 - 1 }

// String writes both with three digits.
func (p pair) String() string { return short(p.mean) + " / " + short(p.p95) }

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
