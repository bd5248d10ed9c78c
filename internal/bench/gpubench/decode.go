package gpubench

import (
	"context"
	"errors"
	"slices"

	"github.com/kvconn/kvconn/gpu/choice"
	"github.com/kvconn/kvconn/gpu/cuda"
	"github.com/kvconn/kvconn/gpu/kernel"
	"github.com/kvconn/kvconn/gpu/libcuda"
)

// decodeShape is what is copied beside decode steps: keys and values apart in usual blocks, whose runs of 32 KiB may go either
// way. Longer ones never go by kernel.
func decodeShape() shape { return shape{Layouts()[2], 16} }

// busyBlocks bounds the grid of a launch: enough to fill any device.
const busyBlocks = 2048

// decoder plays decode steps: launches of a kernel that is bound by the GPU's memory, as decoding is. It is the one that
// collects runs, from one buffer on the device into another.
type decoder struct {
	kernel     *libcuda.Kernel
	stream     *libcuda.Stream
	begin, end *libcuda.Event
	blocks     uint32
	params     [kernel.Params]uint64
	launches   int
}

func newDecoder(r *rig, o *Options) (*decoder, error) {
	d := &decoder{launches: o.Launches}
	m, err := r.ctx.LoadModule(kernel.PTX())
	if err != nil {
		return nil, err
	}
	r.undo = append(r.undo, m.Unload)
	if d.kernel, err = m.Kernel(kernel.GatherName); err != nil {
		return nil, err
	}
	if d.stream, err = r.ctx.NewStream(0); err != nil {
		return nil, err
	}
	r.undo = append(r.undo, d.stream.Destroy)
	for _, e := range []**libcuda.Event{&d.begin, &d.end} {
		if *e, err = r.ctx.NewEvent(true); err != nil {
			return nil, err
		}
		r.undo = append(r.undo, (*e).Destroy)
	}
	return d, d.prepare(r, o)
}

// prepare makes the buffers and the descriptors of the runs.
func (d *decoder) prepare(r *rig, o *Options) error {
	runs := int(o.BusyBytes / busyRunBytes)
	var at [3]libcuda.DevicePtr
	for i, n := range [...]int64{o.BusyBytes, o.BusyBytes, int64(runs) * kernel.DescriptorBytes} {
		var err error
		if at[i], err = r.alloc(n); err != nil {
			return err
		}
	}
	list := r.staging[:runs*kernel.DescriptorBytes]
	for i := range runs {
		kernel.Run{Device: uint64(at[0]) + uint64(i)*busyRunBytes, OffsetBytes: uint32(i * busyRunBytes), LengthBytes: busyRunBytes}.
			Put(list[i*kernel.DescriptorBytes:])
	}
	d.blocks = uint32(kernel.Blocks(runs, kernel.MaxLanesLog2, busyBlocks))
	d.params = [kernel.Params]uint64{
		kernel.ParamRuns: uint64(at[2]), kernel.ParamStaging: uint64(at[1]), kernel.ParamCount: uint64(runs), kernel.ParamLanesLog2: kernel.MaxLanesLog2,
	}
	return errors.Join(d.stream.CopyToDevice(at[2], list), d.stream.Synchronize())
}

// step runs one and returns its seconds on the device.
func (d *decoder) step() (float64, error) {
	if err := d.begin.Record(d.stream); err != nil {
		return 0, err
	}
	for range d.launches {
		if err := d.kernel.Launch(d.stream, d.blocks, kernel.BlockThreads, d.params[:]...); err != nil {
			return 0, errors.Join(err, d.stream.Synchronize())
		}
	}
	err := d.end.Record(d.stream)
	if err = errors.Join(err, d.stream.Synchronize()); err != nil {
		return 0, err
	}
	ms, err := d.end.Since(d.begin)
	return float64(ms) / 1e3, err
}

// steps times n of them.
func (d *decoder) steps(ctx context.Context, n int) ([]float64, error) {
	all := make([]float64, n)
	for i := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var err error
		if all[i], err = d.step(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// copies are what runs beside decode steps: a direction, and a way or nil for the one that is learnt.
type copies struct {
	direction Direction
	way       *choice.Way
}

// allCopies are each direction as the daemon copies, and each way by itself.
func allCopies() []copies {
	batch, kernel := choice.Batch, choice.Kernel
	return []copies{{Load, nil}, {Save, nil}, {Both, nil}, {Load, &batch}, {Load, &kernel}, {Save, &batch}, {Save, &kernel}}
}

// beside times steps while copies run.
func (d *decoder) beside(ctx context.Context, c *cache, what copies, n int) (Step, error) {
	driver := c.driver
	driver.FixWay(what.way)
	defer driver.FixWay(nil)
	all := transfers(c, what.direction)
	if _, err := runAll(ctx, all); err != nil {
		return Step{}, err
	}
	batches, byKernel := counted(driver)
	stop := runOn(ctx, all)
	times, err := d.steps(ctx, n)
	bytes, took, copyErr := stop()
	if err = errors.Join(err, copyErr); err != nil {
		return Step{}, err
	}
	s := Step{
		Beside: what.direction, MedianSeconds: median(times), P99Seconds: percentile(times, 0.99),
		CopiedBytesPerS: float64(bytes) / took.Seconds(),
	}
	if what.way != nil {
		s.Way = what.way.String()
	}
	if all, kernels := counted(driver); all > batches {
		s.KernelRatio = float64(kernels-byKernel) / float64(all-batches)
	}
	return s, nil
}

// counted are a driver's batches until now, and those that went by kernel.
func counted(driver *cuda.Driver) (batches, byKernel uint64) {
	for _, d := range driver.Devices() {
		batches, byKernel = batches+d.Batches, byKernel+d.KernelBatches
	}
	return batches, byKernel
}

func median(values []float64) float64 { return percentile(values, 0.5) }

// percentile of values, which it sorts.
func percentile(values []float64, p float64) float64 {
	slices.Sort(values)
	return values[min(int(p*float64(len(values))), len(values)-1)]
}
