package cuda

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu/copier"
	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/gpu/region"
)

// The engine's side of these tests is a process of its own, as an engine is: CUDA refuses to open memory of the same
// process. It does what it is asked, one question at a time.

type engineRequest struct {
	Op      string `json:"op"`
	Library string `json:"library,omitempty"`
	Device  int    `json:"device,omitempty"`
	// Kind and Sizes of the allocations of a new region; Skip leaves out bytes at the beginning of the first.
	Kind  region.Kind `json:"kind,omitempty"`
	Sizes []int64     `json:"sizes,omitempty"`
	Skip  int64       `json:"skip,omitempty"`
	// Fabric asks for memory that only a fabric's handles export.
	Fabric bool `json:"fabric,omitempty"`
	// Region, Offset, Bytes and Seed of what is filled or compared.
	Region int    `json:"region,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	Seed   uint64 `json:"seed,omitempty"`
}

type engineReply struct {
	Error string `json:"error,omitempty"`
	// WrongAt is the first offset with another byte than Seed says, or -1.
	WrongAt int64 `json:"wrong_at"`
}

// pattern is the byte at an offset of a region filled with a seed.
func pattern(seed uint64, offset int64) byte {
	x := (uint64(offset) + seed*0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	return byte(x >> 56)
}

type engineRegion struct {
	parts []enginePart
}

type enginePart struct {
	at    libcuda.DevicePtr
	bytes int64
}

type engineState struct {
	conn    *copier.Conn
	ctx     *libcuda.Context
	stream  *libcuda.Stream
	uuid    string
	host    []byte
	regions []engineRegion
}

func engineMain(control *os.File) error {
	conn, err := copier.NewConn(control)
	if err != nil {
		return err
	}
	e := &engineState{conn: conn}
	for {
		var r engineRequest
		files, err := conn.Receive(&r)
		if errors.Is(err, copier.ErrHungUp) {
			return nil
		}
		if err != nil {
			return err
		}
		reply := engineReply{WrongAt: -1}
		send, err := e.do(&r, files, &reply)
		copier.CloseAll(files)
		if err != nil {
			reply.Error = err.Error()
		}
		if err := conn.Send(&reply, send...); err != nil {
			return err
		}
		copier.CloseAll(send)
	}
}

// do does what is asked. The files that came with it stay the caller's.
func (e *engineState) do(r *engineRequest, files []*os.File, reply *engineReply) ([]*os.File, error) {
	switch r.Op {
	case "start":
		return nil, e.start(r)
	case "region":
		return e.region(r)
	case "free":
		return nil, e.free(r.Region)
	case "fill":
		return nil, e.each(r, func(at libcuda.DevicePtr, offset int64, host []byte) error {
			for i := range host {
				host[i] = pattern(r.Seed, offset+int64(i))
			}
			return errors.Join(e.stream.CopyToDevice(at, host), e.stream.Synchronize())
		})
	case "write":
		return nil, e.each(r, func(at libcuda.DevicePtr, offset int64, host []byte) error {
			_, err := files[0].ReadAt(host, offset-r.Offset)
			return errors.Join(err, e.stream.CopyToDevice(at, host), e.stream.Synchronize())
		})
	case "read":
		return nil, e.each(r, func(at libcuda.DevicePtr, offset int64, host []byte) error {
			err := errors.Join(e.stream.CopyToHost(host, at), e.stream.Synchronize())
			_, writeErr := files[0].WriteAt(host, offset-r.Offset)
			return errors.Join(err, writeErr)
		})
	case "compare":
		return nil, e.each(r, func(at libcuda.DevicePtr, offset int64, host []byte) error {
			err := errors.Join(e.stream.CopyToHost(host, at), e.stream.Synchronize())
			for i := range host {
				if reply.WrongAt < 0 && host[i] != pattern(r.Seed, offset+int64(i)) {
					reply.WrongAt = offset + int64(i)
				}
			}
			return err
		})
	}
	return nil, fmt.Errorf("operation %q", r.Op)
}

func (e *engineState) start(r *engineRequest) error {
	lib, err := libcuda.Open(r.Library)
	if err != nil {
		return err
	}
	devices, err := lib.Devices()
	if err != nil {
		return err
	}
	u, err := devices[r.Device].UUID()
	if err != nil {
		return err
	}
	e.uuid = u.String()
	if e.ctx, err = devices[r.Device].Retain(); err != nil {
		return err
	}
	if e.stream, err = e.ctx.NewStream(0); err != nil {
		return err
	}
	e.host, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	return err
}

// region allocates and describes a region. The answer's files are its description and, for VMM memory, the socket.
func (e *engineState) region(r *engineRequest) ([]*os.File, error) {
	d := &region.Description{Format: region.Version, Device: e.uuid, Kind: r.Kind}
	var held engineRegion
	var exports []*os.File
	for i, n := range r.Sizes {
		var skip int64
		if i == 0 {
			skip = r.Skip
		}
		p := region.Part{Bytes: n - skip, Offset: skip, AllocationBytes: n}
		var at libcuda.DevicePtr
		var err error
		if r.Kind == region.IPC {
			at, err = e.legacy(n, &p)
		} else {
			var f *os.File
			at, f, err = e.virtual(n, r.Fabric)
			exports = append(exports, f)
			p.Export = len(exports) - 1
		}
		if err != nil {
			return nil, err
		}
		d.Parts = append(d.Parts, p)
		held.parts = append(held.parts, enginePart{at + libcuda.DevicePtr(skip), n - skip})
	}
	e.regions = append(e.regions, held)
	f, err := region.Seal(d)
	if err != nil {
		return nil, err
	}
	if r.Kind == region.IPC {
		return []*os.File{f}, nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours := os.NewFile(uintptr(pair[0]), "exports")
	go func() {
		sendExports(ours, exports)
		_ = ours.Close()
	}()
	return []*os.File{f, os.NewFile(uintptr(pair[1]), "exports")}, nil
}

func sendExports(to *os.File, files []*os.File) {
	c, err := net.FileConn(to)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	for len(files) > 0 {
		n := min(len(files), 253)
		var fds []int
		for _, f := range files[:n] {
			fds = append(fds, int(f.Fd()))
		}
		if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte{0}, unix.UnixRights(fds...), nil); err != nil {
			return
		}
		copier.CloseAll(files[:n])
		files = files[n:]
	}
}

func (e *engineState) legacy(n int64, p *region.Part) (libcuda.DevicePtr, error) {
	at, err := e.ctx.Alloc(n)
	if err != nil {
		return 0, err
	}
	h, err := e.ctx.IPCHandle(at)
	p.Handle = h[:]
	return at, err
}

func (e *engineState) virtual(n int64, fabric bool) (libcuda.DevicePtr, *os.File, error) {
	types := libcuda.HandlePosix
	if fabric {
		types = libcuda.HandleFabric
	}
	a, err := e.ctx.CreateAllocation(n, types)
	if err != nil {
		return 0, nil, err
	}
	at, err := e.ctx.Reserve(n)
	if err != nil {
		return 0, nil, err
	}
	if err := e.ctx.Map(at, n, a); err != nil {
		return 0, nil, err
	}
	f, err := e.ctx.ExportAllocation(a)
	return at, f, errors.Join(err, e.ctx.ReleaseAllocation(a))
}

// free gives the memory of a region of legacy allocations back, as an engine does that sleeps.
func (e *engineState) free(region int) error {
	var err error
	for _, p := range e.regions[region].parts {
		err = errors.Join(err, e.ctx.Free(p.at))
	}
	e.regions[region].parts = nil
	return err
}

// each calls f for stretches of a region's range, with host memory of their size.
func (e *engineState) each(r *engineRequest, f func(at libcuda.DevicePtr, offset int64, host []byte) error) error {
	var from int64
	for _, p := range e.regions[r.Region].parts {
		begin, end := max(r.Offset, from), min(r.Offset+r.Bytes, from+p.bytes)
		for begin < end {
			n := min(end-begin, int64(len(e.host)))
			if err := f(p.at+libcuda.DevicePtr(begin-from), begin, e.host[:n]); err != nil {
				return err
			}
			begin += n
		}
		from += p.bytes
	}
	return nil
}

// testEngine is the test's side of an engine process.
type testEngine struct {
	t    testing.TB
	cmd  *exec.Cmd
	conn *copier.Conn
	// last is the number of the newest region, from 0.
	last int
}

func startEngine(t testing.TB, device int, env ...string) *testEngine {
	t.Helper()
	library := fakeLibrary(t)
	ours, theirs, err := copier.Pair()
	if err != nil {
		t.Fatal(err)
	}
	command := asRole(t, "engine", env...)
	e := &testEngine{t: t, last: -1, cmd: exec.Command(command[0], command[1:]...)}
	e.cmd.ExtraFiles, e.cmd.Stderr = []*os.File{theirs}, os.Stderr
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	if e.conn, err = copier.NewConn(ours); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.kill)
	e.ask(&engineRequest{Op: "start", Library: library, Device: device})
	return e
}

func (e *testEngine) kill() {
	_ = e.conn.Close()
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
}

func (e *testEngine) ask(r *engineRequest, send ...*os.File) (engineReply, []*os.File) {
	e.t.Helper()
	reply, files := e.try(r, send...)
	if reply.Error != "" {
		e.t.Fatalf("engine: %s: %s", r.Op, reply.Error)
	}
	return reply, files
}

// try is ask of what may fail.
func (e *testEngine) try(r *engineRequest, send ...*os.File) (reply engineReply, files []*os.File) {
	e.t.Helper()
	_ = e.conn.Limit(time.Minute)
	if err := e.conn.Send(r, send...); err != nil {
		e.t.Fatal(err)
	}
	files, err := e.conn.Receive(&reply)
	if err != nil {
		e.t.Fatalf("engine: %s: %v", r.Op, err)
	}
	return reply, files
}

// region makes a region and returns what the daemon is to get.
func (e *testEngine) region(kind region.Kind, sizes ...int64) []*os.File {
	e.t.Helper()
	_, files := e.ask(&engineRequest{Op: "region", Kind: kind, Sizes: sizes})
	e.t.Cleanup(func() { copier.CloseAll(files) })
	e.last++
	return files
}

func (e *testEngine) fill(region int, offset, n int64, seed uint64) {
	e.t.Helper()
	e.ask(&engineRequest{Op: "fill", Region: region, Offset: offset, Bytes: n, Seed: seed})
}

// wants fails the test unless a range holds what a fill with the seed writes.
func (e *testEngine) wants(region int, offset, n int64, seed uint64) {
	e.t.Helper()
	if r, _ := e.ask(&engineRequest{Op: "compare", Region: region, Offset: offset, Bytes: n, Seed: seed}); r.WrongAt >= 0 {
		e.t.Errorf("region %d: a wrong byte at %d, of %d from %d on", region, r.WrongAt, n, offset)
	}
}
