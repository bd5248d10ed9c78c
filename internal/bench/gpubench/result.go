package gpubench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Result is what [Run] measured. Every case was compared byte by byte after it was timed.
type Result struct {
	// Device is the GPU's name, Driver the CUDA version of its driver.
	Device string `json:"device"`
	UUID   string `json:"uuid"`
	Driver string `json:"driver"`
	// BatchCopies is set if the driver takes many copies in one call.
	BatchCopies bool `json:"batch_copies"`
	// StandIn is set if the driver is the tests' stand-in: no figure means anything then.
	StandIn bool `json:"stand_in"`
	// ArenaPinned is set if the copier could lock all host memory for the GPU. Copies are slow without it.
	ArenaPinned bool `json:"arena_pinned"`
	// RoundBytes are copied each way in a round, in whole blocks at most.
	RoundBytes int64  `json:"round_bytes"`
	Rounds     int    `json:"rounds"`
	Cases      []Case `json:"cases"`
	Decode     []Step `json:"decode"`
	// LeastRatio is the lowest ratio of all cases.
	LeastRatio float64 `json:"least_ratio"`
}

// Direction of copies.
type Direction string

// Directions. Both is loads and saves side by side, whose bytes are added up.
const (
	Load Direction = "load"
	Save Direction = "save"
	Both Direction = "both"
)

// Case is one layout, size of blocks and direction.
type Case struct {
	Layout      string    `json:"layout"`
	BlockTokens int       `json:"block_tokens"`
	Direction   Direction `json:"direction"`
	BlockBytes  int       `json:"block_bytes"`
	// RunBytes is how long a run is in the engine's memory, Runs how many a round copied each way.
	RunBytes int `json:"run_bytes"`
	Runs     int `json:"runs"`
	// BytesPerS of our path, and PinnedBytesPerS of large copies from and to locked memory in the same rounds.
	BytesPerS       float64 `json:"bytes_per_s"`
	PinnedBytesPerS float64 `json:"pinned_bytes_per_s"`
	// Ratio is the median of the rounds' ratios.
	Ratio float64 `json:"ratio"`
}

// Step is the time of a decode step, which is a busy kernel in a stream of the engine's process.
type Step struct {
	// Beside is what runs at the same time: a direction, or empty for nothing.
	Beside Direction `json:"beside"`
	// Way is how copies were made: batch, kernel, or empty for the one that was learnt to be faster. KernelRatio is the part of
	// the batches that went by kernel, which a GPU may refuse.
	Way           string  `json:"way"`
	KernelRatio   float64 `json:"kernel_ratio"`
	MedianSeconds float64 `json:"median_s"`
	P99Seconds    float64 `json:"p99_s"`
	// Ratio of the median to that of a step alone.
	Ratio float64 `json:"ratio"`
	// CopiedBytesPerS went through our path meanwhile.
	CopiedBytesPerS float64 `json:"copied_bytes_per_s"`
}

// Print writes the result for people.
func (r *Result) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if r.StandIn {
		fmt.Fprintln(w, "This is the stand-in for a driver that tests use: its figures mean nothing.")
	}
	way := "batch copies"
	if !r.BatchCopies {
		way = "one call a copy"
	}
	fmt.Fprintf(w, "%s, CUDA %s, %s; %d MiB each way a round, medians of %d rounds; all bytes compared\n", r.Device, r.Driver, way, r.RoundBytes>>20, r.Rounds)
	if !r.ArenaPinned {
		fmt.Fprintln(w, "The copier could not lock all host memory for the GPU: raise the limit on locked memory (LimitMEMLOCK, ulimit -l).")
	}
	fmt.Fprintln(w, "layout\ttokens\trun\truns\tway\tGB/s\tlimit\tratio")
	for i := range r.Cases {
		c := &r.Cases[i]
		fmt.Fprintf(w, "%s\t%d\t%.4g KiB\t%d\t%s\t%.2f\t%.2f\t%.3f\n", c.Layout, c.BlockTokens, float64(c.RunBytes)/1024, c.Runs, c.Direction,
			c.BytesPerS/1e9, c.PinnedBytesPerS/1e9, c.Ratio)
	}
	fmt.Fprintln(w, "\ndecode step\tmedian\tp99\tratio\tcopied meanwhile\tby kernel")
	for i := range r.Decode {
		s := &r.Decode[i]
		fmt.Fprintf(w, "%s\t%.3f ms\t%.3f ms\t%.3f\t%.2f GB/s\t%.0f%%\n", s.name(), 1e3*s.MedianSeconds, 1e3*s.P99Seconds, s.Ratio,
			s.CopiedBytesPerS/1e9, 100*s.KernelRatio)
	}
	return w.Flush()
}

func (s *Step) name() string {
	name := "alone"
	switch s.Beside {
	case Load:
		name = "beside loads"
	case Save:
		name = "beside saves"
	case Both:
		name = "beside both"
	}
	if s.Way != "" {
		name += ", all by " + s.Way
	}
	return name
}
