package connector

import (
	"errors"
	"math"
	"slices"
	"testing"
)

func TestLayoutValidate(t *testing.T) {
	good := Run{Layers: 8, LayerStride: 1 << 20, BlockStride: 4096, Bytes: 4096}
	one := func(blocks uint32, runs ...Run) Layout {
		return Layout{Groups: []GroupLayout{{Blocks: blocks, Runs: runs}}}
	}
	with := func(change func(r *Run)) Layout {
		r := good
		change(&r)
		return one(256, r)
	}
	for _, tc := range []struct {
		name string
		l    Layout
		ok   bool
	}{
		{"exact fit", with(func(*Run) {}), true},
		{"one byte too far", with(func(r *Run) { r.Offset = 1 }), false},
		{"no blocks", one(0, good), false},
		{"no runs", one(1), false},
		{"no groups", Layout{}, false},
		{"too many groups", Layout{Groups: slices.Repeat([]GroupLayout{{Blocks: 256, Runs: []Run{good}}}, MaxGroups+1)}, false},
		{"too many runs", one(1, slices.Repeat([]Run{{Layers: 1, Bytes: 1}}, MaxRuns+1)...), false},
		{"only empty groups", Layout{Groups: make([]GroupLayout, 2)}, false},
		{"one empty group", Layout{Groups: []GroupLayout{{}, {Blocks: 256, Runs: []Run{good}}}}, true},
		{"unknown region", with(func(r *Run) { r.Region = 1 }), false},
		{"no layers", with(func(r *Run) { r.Layers = 0 }), false},
		{"no bytes", with(func(r *Run) { r.Bytes = 0 }), false},
		{"layers overlap", with(func(r *Run) { r.LayerStride = 0 }), false},
		{"too many pieces", one(1, slices.Repeat([]Run{{Layers: 4096, LayerStride: 1, Bytes: 1}}, 17)...), false},
		{"blocks overlap", with(func(r *Run) { r.BlockStride = 4095 }), false},
		{"layer stride overflows", with(func(r *Run) { r.LayerStride = math.MaxUint64 / 4 }), false},
		{"block stride overflows", with(func(r *Run) { r.BlockStride = math.MaxUint64 }), false},
		{"offset overflows", with(func(r *Run) { r.Offset = math.MaxUint64 }), false},
		{"block too large", one(1, Run{Layers: 2, LayerStride: MaxBlockBytes, Bytes: MaxBlockBytes}), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.l.Validate([]int64{8 << 20})
			if (err == nil) != tc.ok || (err != nil && !errors.Is(err, ErrLayout)) {
				t.Errorf("Validate = %v, want ok=%v", err, tc.ok)
			}
		})
	}
	l := with(func(*Run) {})
	if got := l.Groups[0].BlockBytes(); got != 8*4096 {
		t.Errorf("BlockBytes = %d, want %d", got, 8*4096)
	}
}
