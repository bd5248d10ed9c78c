package copier

import (
	"errors"
	"fmt"
	"os"
	"sort"

	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/gpu/region"
)

// errMemory means that what the engine passed cannot be opened as its description says.
var errMemory = errors.New("engine memory does not fit its description")

// mapping is one rank's memory on the device.
type mapping struct {
	regions []mappedRegion
	// undo gives everything back, the last first.
	undo []func() error
}

// mappedRegion is a region's parts in order, end to end in offsets, but anywhere on the device.
type mappedRegion struct {
	bytes uint64
	parts []mappedPart
}

type mappedPart struct {
	from, to uint64 // offsets in the region
	at       libcuda.DevicePtr
}

// find returns the part that an offset lies in.
func (r *mappedRegion) find(offset uint64) *mappedPart {
	i := sort.Search(len(r.parts), func(i int) bool { return r.parts[i].to > offset })
	return &r.parts[i]
}

// openMapping maps what descriptions say. exports is nil if no region is of VMM memory.
func openMapping(c *libcuda.Context, descriptions []*region.Description, exports *exportStream) (*mapping, error) {
	m := new(mapping)
	legacy := legacyMemory{ctx: c, open: map[libcuda.IPCHandle]libcuda.DevicePtr{}}
	m.undo = append(m.undo, legacy.close)
	for i, d := range descriptions {
		r, err := m.openRegion(c, d, &legacy, exports)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("region %d: %w", i, err), m.close())
		}
		m.regions = append(m.regions, r)
	}
	return m, nil
}

func (m *mapping) openRegion(c *libcuda.Context, d *region.Description, legacy *legacyMemory, exports *exportStream) (mappedRegion, error) {
	r := mappedRegion{bytes: uint64(d.Bytes())}
	if d.Kind == region.VMM {
		return r, m.openExports(c, d, exports, &r)
	}
	var at uint64
	for i := range d.Parts {
		p := &d.Parts[i]
		base, err := legacy.base(p)
		if err != nil {
			return r, fmt.Errorf("part %d: %w", i, err)
		}
		r.parts = append(r.parts, mappedPart{at, at + uint64(p.Bytes), base + libcuda.DevicePtr(p.Offset)})
		at += uint64(p.Bytes)
	}
	return r, nil
}

// legacyMemory opens each legacy handle once: tensors share allocations.
type legacyMemory struct {
	ctx  *libcuda.Context
	open map[libcuda.IPCHandle]libcuda.DevicePtr
}

// base is where the allocation of a part begins here.
func (l *legacyMemory) base(p *region.Part) (libcuda.DevicePtr, error) {
	h := libcuda.IPCHandle(p.Handle)
	at, ok := l.open[h]
	if !ok {
		var err error
		if at, err = l.ctx.OpenIPC(h); err != nil {
			return 0, err
		}
		l.open[h] = at
	}
	// The engine's word for its size is not taken: a copy beyond the mapping would be a sticky error.
	base, size, err := l.ctx.AddressRange(at)
	if err != nil {
		return 0, err
	}
	if base != at || size < p.AllocationBytes {
		return 0, fmt.Errorf("%w: the allocation has %d bytes, not %d", errMemory, size, p.AllocationBytes)
	}
	return at, nil
}

func (l *legacyMemory) close() error {
	var err error
	for _, at := range l.open {
		err = errors.Join(err, l.ctx.CloseIPC(at))
	}
	clear(l.open)
	return err
}

// openExports maps all parts of a region end to end in one reservation.
func (m *mapping) openExports(c *libcuda.Context, d *region.Description, exports *exportStream, r *mappedRegion) error {
	if exports == nil {
		return fmt.Errorf("%w: it has exports, and no socket to bring them", errMemory)
	}
	var total int64
	for i := range d.Parts {
		total += d.Parts[i].AllocationBytes
	}
	base, err := c.Reserve(total)
	if err != nil {
		return err
	}
	m.undo = append(m.undo, func() error { return c.FreeAddresses(base, total) })
	at, offset := base, uint64(0)
	for i := range d.Parts {
		p := &d.Parts[i]
		if err := m.mapExport(c, at, p, exports); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
		r.parts = append(r.parts, mappedPart{offset, offset + uint64(p.Bytes), at + libcuda.DevicePtr(p.Offset)})
		offset += uint64(p.Bytes)
		at += libcuda.DevicePtr(p.AllocationBytes)
	}
	return nil
}

// mapExport imports one export and maps it. Descriptor and handle go at once: both would keep the memory allocated
// after the engine has freed it, and the mapping alone does what is needed.
func (m *mapping) mapExport(c *libcuda.Context, at libcuda.DevicePtr, p *region.Part, exports *exportStream) error {
	f, err := exports.take(p.Export)
	if err != nil {
		return err
	}
	a, err := c.ImportAllocation(f)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("close an export: %w", closeErr)
	}
	if err != nil {
		return err
	}
	err = c.Map(at, p.AllocationBytes, a)
	err = errors.Join(err, c.ReleaseAllocation(a))
	if err == nil {
		m.undo = append(m.undo, func() error { return c.Unmap(at, p.AllocationBytes) })
	}
	return err
}

func (m *mapping) close() error {
	var err error
	for i := len(m.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, m.undo[i]())
	}
	m.undo, m.regions = nil, nil
	return err
}

// readDescriptions reads all descriptions and checks that they are of one device.
func readDescriptions(files []*os.File, device string) ([]*region.Description, error) {
	var out []*region.Description
	for i, f := range files {
		d, err := region.Read(f)
		if err != nil {
			return nil, fmt.Errorf("region %d: %w", i, err)
		}
		if d.Device != device {
			return nil, fmt.Errorf("%w: region %d is on %s, and this is the copier of %s", errMemory, i, d.Device, device)
		}
		out = append(out, d)
	}
	return out, nil
}
