// Package cuda is the driver for engines with their KV memory on NVIDIA GPUs. It never calls CUDA in this process: each
// GPU has a copier, a child process that does (docs/adr/0018-gpu.md). Engines that pass shared memory are served by the
// host driver, so one daemon serves both.
package cuda

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/choice"
	"github.com/kvconn/kvconn/gpu/region"
)

// Driver opens device memory. It is safe for concurrent use.
type Driver struct {
	o Options

	mu     sync.Mutex
	arena  arena
	gpus   map[string]*device
	place  placement
	closed bool
	// quit is closed once no copier is to be started any more.
	quit     chan struct{}
	quitOnce sync.Once
}

var (
	_ gpu.Driver       = (*Driver)(nil)
	_ gpu.Holder       = (*Driver)(nil)
	_ gpu.Quitter      = (*Driver)(nil)
	_ gpu.DeviceLister = (*Driver)(nil)
)

// arena is the host memory that copies use.
type arena struct {
	file *os.File
	mem  []byte
}

// New makes a driver. No copier is started before an engine registers memory on its GPU.
func New(o Options) (*Driver, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Driver{o: o, gpus: map[string]*device{}, quit: make(chan struct{})}, nil
}

// PinHost takes note of the host memory. Copiers lock it for their GPUs in chunks while they already serve. The returned
// function ends all copiers.
func (d *Driver) PinHost(file *os.File, mem []byte) (func() error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.arena = arena{file, mem}
	return d.Close, nil
}

// Open opens device memory if the files are descriptions of some, and shared memory otherwise.
func (d *Driver) Open(files []*os.File) (gpu.Memory, error) { return d.OpenHolding(files, nil) }

// OpenHolding implements [gpu.Holder]. The copier has the connection until the memory is closed; shared memory is
// copied by this process, which needs no other to hold it. connection may be nil.
func (d *Driver) OpenHolding(files []*os.File, connection *os.File) (gpu.Memory, error) {
	if len(files) == 0 || !region.Is(files[0]) {
		return d.o.Host.Open(files)
	}
	described := files
	stream := region.IsStream(files[len(files)-1])
	if stream {
		described = files[:len(files)-1]
	}
	var sizes []int64
	var uuid string
	for i, f := range described {
		r, err := region.Read(f)
		if err != nil {
			return nil, fmt.Errorf("region %d: %w", i, err)
		}
		if i > 0 && r.Device != uuid {
			return nil, fmt.Errorf("%w: region %d is on %s, and others on %s", region.ErrDescription, i, r.Device, uuid)
		}
		uuid, sizes = r.Device, append(sizes, r.Bytes())
	}
	g, err := d.device(uuid)
	if err != nil {
		return nil, err
	}
	c, err := g.copier()
	if err != nil {
		return nil, fmt.Errorf("copier of %s: %w", uuid, err)
	}
	number, err := c.open(files, stream, connection)
	if err != nil {
		return nil, fmt.Errorf("open memory on %s: %w", uuid, err)
	}
	if stream { // a region of no bytes
		sizes = append(sizes, 0)
	}
	return &memory{g: g, c: c, number: number, sizes: sizes}, nil
}

func (d *Driver) device(uuid string) (*device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, errors.New("the driver is closed")
	case d.arena.mem == nil:
		return nil, errors.New("no host memory was prepared for copies")
	}
	g := d.gpus[uuid]
	if g == nil {
		if len(d.gpus) >= maxDevices && !d.forget() {
			return nil, fmt.Errorf("engines have named more than %d GPUs", maxDevices)
		}
		g = &device{o: &d.o, uuid: uuid, arena: d.arena, place: &d.place, quit: d.quit}
		d.gpus[uuid] = g
	}
	return g, nil
}

// maxDevices bounds the GPUs that are kept: far more than a node has. Engines name them, whether they exist or not.
const maxDevices = 64

// forget gives up a GPU that has never served, if there is one. mu is held.
func (d *Driver) forget() bool {
	for uuid, g := range d.gpus {
		if g.retire() {
			delete(d.gpus, uuid)
			return true
		}
	}
	return false
}

// Quit ends copiers that are being started, which may take a minute, and starts no others.
func (d *Driver) Quit() { d.quitOnce.Do(func() { close(d.quit) }) }

// Close ends all copiers, and waits until they have gone. Memory that is still open is lost.
func (d *Driver) Close() error {
	d.Quit()
	d.mu.Lock()
	d.closed = true
	gpus := d.gpus
	d.mu.Unlock()
	var wait sync.WaitGroup
	for _, g := range gpus {
		wait.Go(g.close)
	}
	wait.Wait()
	return nil
}

// FixWay has copies that might go either way go this one on all GPUs that serve now, and nil what is learnt to be faster: for
// measurements.
func (d *Driver) FixWay(w *choice.Way) {
	for _, g := range d.all() {
		g.learnt.Fix(w)
	}
}

// all are the GPUs that engines have named.
func (d *Driver) all() []*device {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.gpus))
}

// Devices implements [gpu.DeviceLister].
func (d *Driver) Devices() []gpu.DeviceStatus {
	gpus := d.all()
	out := make([]gpu.DeviceStatus, 0, len(gpus))
	for _, g := range gpus {
		out = append(out, g.status())
	}
	slices.SortFunc(out, func(a, b gpu.DeviceStatus) int { return strings.Compare(a.UUID, b.UUID) })
	return out
}
