// Package gpubench measures the way of blocks between a GPU and the host tier's memory, through a copier as in service,
// against large copies of locked memory in the same run; and what those copies cost a kernel that keeps the GPU busy.
//
// This process plays the engine: it holds the KV memory in layouts of real models, in a context of its own. The copier is
// another process, as it always is.
package gpubench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvconn/kvconn/gpu/libcuda"
)

// standIn begins the UUID of the tests' stand-in for a GPU.
const standIn = "fakecuda-gpu"

// Run measures all cases. It fails if any byte is wrong.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	lib, err := libcuda.Open(o.Library)
	if err != nil {
		return nil, fmt.Errorf("bench gpu: %w", err)
	}
	dev, uuid, err := find(lib, o.GPU)
	if err != nil {
		return nil, err
	}
	b := bench{o: o}
	if b.r.StandIn = strings.HasPrefix(string(uuid[:]), standIn); b.r.StandIn {
		b.o.shorten()
		b.o.Progress("this is a stand-in for a GPU's driver: a short run, whose figures mean nothing")
	}
	arena, need := b.sizes()
	if b.rig, err = newRig(&b.o, lib, dev, arena, need); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.rig.close()) }()
	b.r.Device, b.r.UUID, b.r.Driver, b.r.BatchCopies = b.rig.name, uuid.String(), lib.Version().String(), lib.HasBatch()
	b.r.RoundBytes, b.r.Rounds = b.o.TotalBytes, b.o.Rounds
	for _, s := range shapes() {
		if err := b.measure(ctx, s); err != nil {
			return nil, err
		}
	}
	if err := b.decode(ctx); err != nil {
		return nil, err
	}
	for i := range b.r.Cases {
		if ratio := b.r.Cases[i].Ratio; i == 0 || ratio < b.r.LeastRatio {
			b.r.LeastRatio = ratio
		}
	}
	return &b.r, nil
}

// find returns the device with a UUID, or the first.
func find(lib *libcuda.Library, want string) (libcuda.Device, libcuda.UUID, error) {
	devices, err := lib.Devices()
	if err != nil {
		return libcuda.Device{}, libcuda.UUID{}, fmt.Errorf("bench gpu: %w", err)
	}
	for _, d := range devices {
		u, err := d.UUID()
		if err != nil {
			return d, u, fmt.Errorf("bench gpu: %w", err)
		}
		if want == "" || u.String() == want {
			return d, u, nil
		}
	}
	if want == "" {
		return libcuda.Device{}, libcuda.UUID{}, errors.New("bench gpu: the driver shows no GPU")
	}
	return libcuda.Device{}, libcuda.UUID{}, fmt.Errorf("bench gpu: no GPU is %s, among %d", want, len(devices))
}

// bench is one Run.
type bench struct {
	o   Options
	rig *rig
	r   Result
	// number of the next content, so that what an earlier case left is never right.
	number int
}

// sizes are the arena's, and the device memory that the largest case or the decode steps need.
func (b *bench) sizes() (arena, need int64) {
	for _, s := range shapes() {
		n := int64(s.blocks(b.o.TotalBytes))
		arena = max(arena, 2*n*int64(s.slotBytes()))
		need = max(need, 2*n*int64(s.blockBytes())+int64(s.Tensors)*granuleBytes)
	}
	return arena, need + 2*b.o.BusyBytes + granuleBytes
}

// measure measures one shape in all directions.
func (b *bench) measure(ctx context.Context, s shape) error {
	b.o.Progress(fmt.Sprintf("%s, blocks of %d tokens", s.Name, s.tokens))
	c, err := openCache(b.rig, s, b.o.TotalBytes)
	if err != nil {
		return err
	}
	if len(b.r.Cases) == 0 {
		b.r.ArenaPinned, err = b.rig.awaitPinned(ctx)
	}
	for _, way := range []Direction{Load, Save, Both} {
		if err == nil {
			err = b.direction(ctx, c, way)
		}
	}
	return errors.Join(err, c.close())
}

func (b *bench) direction(ctx context.Context, c *cache, way Direction) error {
	load, save := b.number, b.number+1
	b.number += 2
	if err := c.fill(load, save); err != nil {
		return err
	}
	all := transfers(c, way)
	bytes := c.blocks * c.blockBytes()
	var ours, plain, ratios []float64
	for i := range b.o.Rounds + 1 {
		if err := ctx.Err(); err != nil {
			return err
		}
		began := time.Now()
		if err := c.copyPlain(way != Save, way != Load, bytes); err != nil {
			return err
		}
		limit := time.Since(began)
		took, err := runAll(ctx, all)
		if err != nil {
			return err
		}
		if i == 0 {
			continue // the first round warms up
		}
		rate := float64(len(all) * bytes)
		ours, plain = append(ours, rate/took.Seconds()), append(plain, rate/limit.Seconds())
		ratios = append(ratios, limit.Seconds()/took.Seconds())
	}
	b.r.Cases = append(b.r.Cases, Case{
		Layout: c.Name, BlockTokens: c.tokens, Direction: way, BlockBytes: c.blockBytes(), RunBytes: c.runBytes(), Runs: c.blocks * c.Tensors,
		BytesPerS: median(ours), PinnedBytesPerS: median(plain), Ratio: median(ratios),
	})
	return c.verify(load, save, way != Save, way != Load)
}

// decode times decode steps alone and beside copies.
func (b *bench) decode(ctx context.Context) error {
	b.o.Progress("decode steps beside copies")
	c, err := openCache(b.rig, decodeShape(), b.o.TotalBytes)
	if err != nil {
		return err
	}
	return errors.Join(b.decodeBeside(ctx, c), c.close())
}

func (b *bench) decodeBeside(ctx context.Context, c *cache) error {
	load, save := b.number, b.number+1
	b.number += 2
	if err := c.fill(load, save); err != nil {
		return err
	}
	d, err := newDecoder(b.rig, &b.o)
	if err != nil {
		return err
	}
	if _, err := d.steps(ctx, min(b.o.Steps, 10)); err != nil { // to warm up
		return err
	}
	alone, err := d.steps(ctx, b.o.Steps)
	if err != nil {
		return err
	}
	b.r.Decode = append(b.r.Decode, Step{MedianSeconds: median(alone), P99Seconds: percentile(alone, 0.99), Ratio: 1})
	for _, what := range allCopies() {
		s, err := d.beside(ctx, c, what, b.o.Steps)
		if err != nil {
			return err
		}
		if alone := b.r.Decode[0].MedianSeconds; alone > 0 {
			s.Ratio = s.MedianSeconds / alone
		}
		b.r.Decode = append(b.r.Decode, s)
	}
	return c.verify(load, save, true, true)
}
