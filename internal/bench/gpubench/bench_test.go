package gpubench

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/libcuda"
)

func TestAllCasesAreMeasured(t *testing.T) {
	r, err := Run(t.Context(), onStandIn(t))
	if err != nil {
		t.Fatal(err)
	}
	if want := len(Layouts()) * 2 * 3; len(r.Cases) != want || !r.StandIn || !r.ArenaPinned || !r.BatchCopies {
		t.Errorf("%d cases of %d; %+v", len(r.Cases), want, r)
	}
	for _, c := range r.Cases {
		if !(c.BytesPerS > 0) || !(c.PinnedBytesPerS > 0) || !(c.Ratio > 0) || c.Runs < 1 || c.RunBytes < 1 || c.Ratio < r.LeastRatio {
			t.Errorf("%+v", c)
		}
	}
	var beside []Direction
	for _, s := range r.Decode {
		beside = append(beside, s.Beside)
		if s.Way == "kernel" && s.KernelRatio != 1 || s.Way == "batch" && s.KernelRatio != 0 {
			t.Errorf("%+v", s)
		}
		if !(s.MedianSeconds > 0) || s.P99Seconds < s.MedianSeconds || !(s.Ratio > 0) || (s.Beside != "") != (s.CopiedBytesPerS > 0) {
			t.Errorf("%+v", s)
		}
	}
	if !slices.Equal(beside, []Direction{"", Load, Save, Both, Load, Load, Save, Save}) {
		t.Errorf("beside %q", beside)
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"figures mean nothing", "hybrid, per layer", "beside saves, all by kernel", "Fake GPU"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
}

// A driver before batch copies is measured too. That, and memory that could not be locked, are named.
func TestWhatMakesCopiesSlowIsSaid(t *testing.T) {
	r, err := Run(t.Context(), onStandIn(t, "FAKECUDA_VERSION=12040"))
	if err != nil {
		t.Fatal(err)
	}
	r.BatchCopies, r.ArenaPinned = false, false
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one call a copy", "ulimit -l"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
}

func TestFailuresAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no driver":       {func(o *Options) { o.Library = "/nowhere/libcuda.so.1" }, "no CUDA driver"},
		"no such GPU":     {func(o *Options) { o.GPU = "GPU-of-nobody" }, "no GPU is GPU-of-nobody, among 1"},
		"a failed copy":   {func(o *Options) { o.Copier = onStandIn(t, "FAKECUDA_FAULT=cuMemcpyBatchAsync:9:999").Copier }, "UNKNOWN (999)"},
		"a dying copier":  {func(o *Options) { o.Copier = onStandIn(t, "FAKECUDA_FAULT=cuMemcpyBatchAsync:9:segv").Copier }, "the copier has ended"},
		"too few bytes":   {func(o *Options) { o.TotalBytes = 1 }, "1 bytes each way"},
		"negative rounds": {func(o *Options) { o.Rounds = -1 }, "-1 rounds"},
		"no busy kernel":  {func(o *Options) { o.BusyBytes = 1 }, "moves 1 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			o := onStandIn(t)
			c.change(&o)
			if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, onStandIn(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// small opens a cache of one shape on the stand-in.
func small(t *testing.T, s shape) *cache {
	t.Helper()
	o := onStandIn(t)
	o.EnsureDefaults()
	o.shorten()
	lib, err := libcuda.Open(o.Library)
	if err != nil {
		t.Fatal(err)
	}
	dev, _, err := find(lib, "")
	if err != nil {
		t.Fatal(err)
	}
	b := bench{o: o}
	arena, need := b.sizes()
	r, err := newRig(&o, lib, dev, arena, need)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	c, err := openCache(r, s, o.TotalBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// The comparison finds each kind of wrong byte: what it does not find would be measured as right.
func TestWrongBytesAreFound(t *testing.T) {
	c := small(t, shape{Layouts()[2], 16})
	flip := func(p libcuda.DevicePtr) error {
		return errors.Join(c.streams[0].Fill(p, 0x5a, 16), c.streams[0].Synchronize())
	}
	for name, spoil := range map[string]func() error{
		"a byte of a loaded block":     func() error { return flip(c.tensors[7] + libcuda.DevicePtr(c.place[1]*c.runBytes()+100)) },
		"a byte of a block not loaded": func() error { return flip(c.tensors[63] + libcuda.DevicePtr(c.place[c.blocks]*c.runBytes())) },
		"a byte of what was saved":     func() error { c.slot(c.blocks + 1)[c.blockBytes()-1] ^= 1; return nil },
		"a byte of what was loaded":    func() error { c.slot(0)[5] ^= 1; return nil },
		"a load that did nothing":      nil,
	} {
		if err := c.fill(1, 2); err != nil {
			t.Fatal(err)
		}
		all := transfers(c, Both)
		if spoil == nil {
			all = transfers(c, Save)
		}
		if _, err := runAll(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		if spoil != nil {
			if err := c.verify(1, 2, true, true); err != nil {
				t.Fatal(err)
			}
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.verify(1, 2, true, true); !errors.Is(err, errWrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Batches are of the size that the driver asks for, and all pieces together are each block once.
func TestTransfersAreDividedAsAWorkerDivides(t *testing.T) {
	for _, s := range shapes() {
		c := &cache{rig: &rig{arena: make([]byte, 64<<20)}, shape: s, blocks: s.blocks(24 << 20)}
		c.place = make([]int, 2*c.blocks)
		c.mem = sized{}
		load := newTransfer(c, gpu.Load)
		n := 0
		for i := range load.pieces {
			n += len(load.pieces[i].Host)
		}
		perBatch := load.perBatch * s.runBytes()
		if n != load.bytes() || n > 24<<20 || perBatch > max(8<<20, s.blockBytes()) || perBatch+s.blockBytes() <= 8<<20 {
			t.Errorf("%s, %d: %d bytes in batches of %d", s.Name, s.tokens, n, perBatch)
		}
	}
}

type sized struct{ gpu.Memory }

func (sized) Shape() gpu.Shape { return gpu.Shape{Calls: 4, BatchBytes: 8 << 20} }

func TestRecordsDiffer(t *testing.T) {
	x := newText(64)
	seen := map[string]int{}
	for b := range 5000 {
		seen[string(x.record(b, 3))]++
	}
	if len(seen) != 5000 || bytes.Equal(x.record(4, 3), x.record(4, 4)) {
		t.Errorf("%d records of 5000 differ", len(seen))
	}
}
