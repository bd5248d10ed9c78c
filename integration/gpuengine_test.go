package integration

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/gpu/region"
)

// deviceMemory is an engine's KV cache on a device. The device is the stand-in's: its exports are memfds, which the
// engine's processor maps to compute in. The daemon sees a device whose memory only the driver reaches.
type deviceMemory struct {
	ctx        *libcuda.Context
	uuid       string
	sizeBytes  int64
	allocation int64
	export     *os.File
	// given are the files of the registration before.
	given []*os.File
}

// openDevice makes a context on the stand-in's first device.
func openDevice(library string) (*deviceMemory, error) {
	lib, err := libcuda.Open(library)
	if err != nil {
		return nil, err
	}
	devices, err := lib.Devices()
	if err != nil {
		return nil, err
	}
	u, err := devices[0].UUID()
	if err != nil {
		return nil, err
	}
	ctx, err := devices[0].Retain()
	return &deviceMemory{ctx: ctx, uuid: u.String()}, err
}

// make allocates the memory and returns a file to map it with.
func (d *deviceMemory) make(sizeBytes int64) (*os.File, error) {
	unit, err := d.ctx.Granularity(libcuda.HandlePosix)
	if err != nil {
		return nil, err
	}
	d.sizeBytes, d.allocation = sizeBytes, (sizeBytes+unit-1)/unit*unit
	a, err := d.ctx.CreateAllocation(d.allocation, libcuda.HandlePosix)
	if err != nil {
		return nil, err
	}
	if d.export, err = d.ctx.ExportAllocation(a); err != nil {
		return nil, err
	}
	return duplicate(d.export)
}

func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// regions describes the memory for one registration.
func (d *deviceMemory) regions() ([]*os.File, error) {
	for _, f := range d.given {
		_ = f.Close()
	}
	d.given = nil
	f, err := region.Seal(&region.Description{
		Format: region.Version, Device: d.uuid, Kind: region.VMM,
		Parts: []region.Part{{Bytes: d.sizeBytes, AllocationBytes: d.allocation}},
	})
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours := os.NewFile(uintptr(pair[0]), "exports")
	defer func() { _ = ours.Close() }()
	c, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	_, _, err = c.(*net.UnixConn).WriteMsgUnix([]byte{0}, unix.UnixRights(int(d.export.Fd())), nil)
	d.given = []*os.File{f, os.NewFile(uintptr(pair[1]), "exports")}
	return d.given, errors.Join(err, c.Close())
}
