// Package copier is the process that holds one GPU's driver. The daemon starts it, hands it the host tier's arena and
// a ring of batches, and asks it to open engines' memory. A fault, a sticky error or a hung call of the driver costs
// this process, and nothing else.
package copier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/gpu/ring"
)

// Exit codes of a copier process. Any end of it means the same to the daemon: its memory is untouched from then on.
const (
	// ExitSticky: the driver has said that the context is dead, or a copy's end cannot be known.
	ExitSticky = 3
	// ExitBell: the ring cannot be used.
	ExitBell = 4
)

// copier is the state of one Run.
type copier struct {
	conn   *Conn
	ring   *ring.Ring
	ctx    *libcuda.Context
	device string
	arena  *arena
	// pinning is done once the arena is being locked.
	pinning sync.Once

	mu       sync.RWMutex
	mappings map[uint32]*held
	// connections are those of the mappings.
	connections *connections
	lanes       [2]*lane
	// exit ends this process at once. It is os.Exit: nothing is cleaned up, since calls of the driver may hang.
	exit func(code int)
}

// held is a mapping and the batches that use it. Closing waits for them.
type held struct {
	*mapping
	inUse sync.WaitGroup
	// connection is the engine's, -1 if there is none. It ends only once nobody holds it, so the engine does not see the
	// end of a daemon that was killed before the copies for it have ended here.
	connection int
}

// Run serves the daemon at the other end of control until it hangs up. It takes control over. exit ends the process
// at once: os.Exit.
func Run(ctx context.Context, control *os.File, exit func(code int)) error {
	conn, err := NewConn(control)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.OnHangUp(func() { exit(0) }); err != nil {
		return err
	}
	reserved, err := reserveConnections()
	if err != nil {
		return err
	}
	c := &copier{conn: conn, mappings: map[uint32]*held{}, connections: reserved, exit: exit}
	for {
		var r Request
		files, err := conn.Receive(&r)
		if errors.Is(err, ErrHungUp) || errors.Is(err, os.ErrClosed) {
			return nil // the daemon has gone, or wants this process to go; its end frees all
		}
		if err != nil {
			return err
		}
		reply := c.answer(&r, files)
		if err := conn.Send(reply); err != nil {
			return err
		}
		if reply.Cause == CauseSticky {
			exit(ExitSticky)
		}
	}
}

// answer does what is asked.
func (c *copier) answer(r *Request, files []*os.File) *Reply {
	reply := new(Reply)
	var err error
	switch {
	case r.Op == Start && c.ctx == nil:
		reply.Device, err = c.start(r, files)
	case r.Op == Open && c.ctx != nil:
		err = c.open(r, files)
	case r.Op == Close && c.ctx != nil:
		err = c.close(r.Memory)
	default:
		err = fmt.Errorf("operation %q cannot be done now", r.Op)
		CloseAll(files)
	}
	if err != nil {
		reply.Error, reply.Cause = beginning(err.Error()), causeOf(err)
	}
	return reply
}

// maxErrorBytes of a text fit a message, whatever they become in JSON.
const maxErrorBytes = 2048

// beginning of a text. The errors of a close are one for each of its mappings, which may be thousands.
func beginning(text string) string {
	if len(text) <= maxErrorBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxErrorBytes], "") + "..."
}

func causeOf(err error) Cause {
	switch {
	case libcuda.IsSticky(err):
		return CauseSticky
	case errors.Is(err, libcuda.ErrNoDriver), errors.Is(err, libcuda.ErrStub), errors.Is(err, libcuda.ErrTooOld):
		return CauseDriver
	case errors.Is(err, errNoDevice):
		return CauseDevice
	}
	return CauseMemory
}

// errNoDevice means that no device has the UUID.
var errNoDevice = errors.New("this process sees no such GPU")

// start loads the driver, takes the device's context, and begins to serve the ring.
func (c *copier) start(r *Request, files []*os.File) (*DeviceInfo, error) {
	if len(files) != 4 {
		CloseAll(files)
		return nil, fmt.Errorf("start with %d files", len(files))
	}
	var err error
	c.ring, err = ring.Open([3]*os.File(files[1:]))
	if err != nil {
		_ = files[0].Close()
		return nil, err
	}
	c.arena, err = openArena(files[0], r.ArenaBytes)
	if err != nil {
		return nil, err
	}
	lib, err := libcuda.Open(r.Library)
	if err != nil {
		return nil, err
	}
	dev, err := findDevice(lib, r.Device)
	if err != nil {
		return nil, err
	}
	ctx, err := dev.Retain()
	if err != nil {
		return nil, err
	}
	c.device = r.Device
	info, err := describe(lib, ctx)
	if err != nil {
		return nil, err
	}
	c.ctx = ctx
	if err := c.startLanes(info); err != nil {
		c.ctx = nil
		return nil, err
	}
	go c.serve()
	return info, nil
}

// startLanes starts both directions, with kernels unless the driver refuses them.
func (c *copier) startLanes(info *DeviceInfo) error {
	k, lists, err := takeKernels(c.ctx)
	if libcuda.IsSticky(err) {
		return err
	}
	if err != nil {
		info.KernelError = beginning(err.Error())
		k = [2]*kernels{}
	}
	for i := range c.lanes {
		if c.lanes[i], err = newLane(c, gpu.Direction(i), k[i], lists[i]); err != nil {
			return err
		}
	}
	return nil
}

func findDevice(lib *libcuda.Library, uuid string) (libcuda.Device, error) {
	devices, err := lib.Devices()
	if err != nil {
		return libcuda.Device{}, err
	}
	for _, d := range devices {
		u, err := d.UUID()
		if err != nil {
			return libcuda.Device{}, err
		}
		if u.String() == uuid {
			return d, nil
		}
	}
	return libcuda.Device{}, fmt.Errorf("%w: %s, among %d", errNoDevice, uuid, len(devices))
}

func describe(lib *libcuda.Library, ctx *libcuda.Context) (*DeviceInfo, error) {
	d := ctx.Device()
	name, err := d.Name()
	if err != nil {
		return nil, err
	}
	u, err := d.UUID()
	if err != nil {
		return nil, err
	}
	node, err := d.Attribute(libcuda.AttrHostNUMANode)
	switch {
	case libcuda.IsSticky(err):
		return nil, err
	case err != nil:
		node = -1 // older than the attribute
	}
	free, total, err := ctx.MemInfo()
	if err != nil {
		return nil, err
	}
	return &DeviceInfo{
		Name: name, UUID: u.String(), Driver: lib.Version().String(), NUMANode: node, Batch: lib.HasBatch(),
		FreeBytes: free, TotalBytes: total,
	}, nil
}

// open maps a rank's memory. With the first the arena is locked, which takes all of its memory: the daemon has said by then
// where that is to come from.
func (c *copier) open(r *Request, files []*os.File) (err error) {
	c.pinning.Do(func() { go c.arena.pin(c.ctx, c.ring.SetPinned) })
	var connection *os.File
	if r.Connection && len(files) > 0 {
		connection, files = files[len(files)-1], files[:len(files)-1]
		defer func() { _ = connection.Close() }()
	}
	defer CloseAll(files)
	var exports *exportStream
	descriptions := files
	if r.Stream && len(files) > 0 {
		if exports, err = newExportStream(files[len(files)-1]); err != nil {
			return err
		}
		defer func() { _ = exports.close() }()
		descriptions = files[:len(files)-1]
	}
	described, err := readDescriptions(descriptions, c.device)
	if err != nil {
		return err
	}
	m, err := openMapping(c.ctx, described, exports)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, taken := c.mappings[r.Memory]; taken {
		return errors.Join(fmt.Errorf("memory %d is open already", r.Memory), m.close())
	}
	h := &held{mapping: m, connection: -1}
	if connection != nil {
		if h.connection, err = c.connections.hold(connection); err != nil {
			return errors.Join(err, m.close())
		}
	}
	c.mappings[r.Memory] = h
	return nil
}

// close unmaps it after the copies under way. The daemon submits no more for it.
func (c *copier) close(memory uint32) error {
	c.mu.Lock()
	h := c.mappings[memory]
	delete(c.mappings, memory)
	c.mu.Unlock()
	if h == nil {
		return nil
	}
	h.inUse.Wait()
	err := h.close()
	if h.connection >= 0 {
		c.connections.release(h.connection)
	}
	return err
}

// use finds a mapping and keeps it open until release.
func (c *copier) use(memory uint32) *held {
	c.mu.RLock()
	defer c.mu.RUnlock()
	h := c.mappings[memory]
	if h != nil {
		h.inUse.Add(1)
	}
	return h
}

// serve hands the batches of the ring to the lanes of their direction.
func (c *copier) serve() {
	for {
		if err := c.ring.AwaitBatches(); err != nil {
			c.exit(ExitBell)
			return
		}
		for {
			slot, ok := c.ring.Take()
			if !ok {
				break
			}
			c.lanes[c.ring.Batch(slot).Direction()&1].queue <- slot
		}
	}
}
