package cuda

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/copier"
	"github.com/kvconn/kvconn/gpu/region"
)

// pair is a Unix socket: one end to send exports on, the other to pass to the daemon.
func pair(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs = os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	t.Cleanup(func() { copier.CloseAll([]*os.File{ours, theirs}) })
	return ours, theirs
}

// oneExport takes the descriptor of a region of one part out of its socket.
func oneExport(t *testing.T, stream *os.File) int {
	t.Helper()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(stream.Fd()), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		t.Fatal(err, len(messages))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatal(err, fds)
	}
	t.Cleanup(func() { _ = unix.Close(fds[0]) })
	return fds[0]
}

// repeated is a description whose part comes many times, with an export for each.
func repeated(t *testing.T, description *os.File, times int) *os.File {
	t.Helper()
	d, err := region.Read(description)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < times; i++ {
		p := d.Parts[0]
		p.Export = i
		d.Parts = append(d.Parts, p)
	}
	f, err := region.Seal(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// An engine whose exports come one by one, each in time, would have its copier killed for not answering: the memory of
// all others with it.
func TestExportsThatDribbleCostTheirEngineOnly(t *testing.T) {
	t.Parallel()
	const parts = 60
	e, r := startEngine(t, 0), newRig(t, func(o *Options) { o.OpenTimeout = 11 * time.Second })
	other := r.open(e.region(region.IPC, granularity))
	files := e.region(region.VMM, granularity)
	export := oneExport(t, files[1])
	ours, theirs := pair(t)
	done := make(chan struct{})
	var sender sync.WaitGroup
	defer func() {
		close(done)
		sender.Wait()
	}()
	sender.Go(func() {
		for range parts {
			if unix.Sendmsg(int(ours.Fd()), []byte{0}, unix.UnixRights(export), nil, unix.MSG_NOSIGNAL) != nil {
				return
			}
			select {
			case <-time.After(300 * time.Millisecond):
			case <-done:
				return
			}
		}
	})
	if _, err := r.Open([]*os.File{repeated(t, files[0], parts), theirs}); err == nil || errors.Is(err, gpu.ErrLost) {
		t.Errorf("%v", err)
	}
	b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}}
	if err := other.Copy(t.Context(), &b); err != nil {
		t.Errorf("another memory of the GPU: %v", err)
	}
}

// descriptorsOf counts those of a process.
func descriptorsOf(t *testing.T, pid int) int {
	t.Helper()
	d, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// The engine can have the kernel add messages of other kinds: its credentials, and a descriptor of its process.
func TestDescriptorsBesideOtherMessagesAreNotLeftOpen(t *testing.T) {
	e, r := startEngine(t, 0), newRig(t, nil)
	r.open(e.region(region.IPC, granularity))
	p := copierOf(t, r)
	for name, option := range map[string]int{"credentials": unix.SO_PASSCRED, "process": unix.SO_PASSPIDFD} {
		t.Run(name, func(t *testing.T) {
			files := e.region(region.VMM, granularity)
			export := oneExport(t, files[1])
			d := repeated(t, files[0], 2)
			before := descriptorsOf(t, p.cmd.Process.Pid)
			for range 5 {
				ours, theirs := pair(t)
				if err := unix.SetsockoptInt(int(theirs.Fd()), unix.SOL_SOCKET, option, 1); err != nil {
					t.Skip(err)
				}
				// One message only, so that the registration fails.
				if err := unix.Sendmsg(int(ours.Fd()), []byte{0}, unix.UnixRights(export), nil, 0); err != nil {
					t.Fatal(err)
				}
				_ = ours.Close()
				if _, err := r.Open([]*os.File{d, theirs}); err == nil || errors.Is(err, gpu.ErrLost) {
					t.Errorf("%v", err)
				}
			}
			if after := descriptorsOf(t, p.cmd.Process.Pid); after > before {
				t.Errorf("the copier has %d descriptors more", after-before)
			}
		})
	}
}

// What a driver says of hundreds of mappings does not fit a message: its beginning must.
func TestManyErrorsOfACloseCostNoCopier(t *testing.T) {
	sizes := make([]int64, 600)
	for i := range sizes {
		sizes[i] = granularity
	}
	e, r := startEngine(t, 0), newRig(t, nil, "FAKECUDA_FAULT=cuMemUnmap:*:999")
	other := r.open(e.region(region.IPC, granularity))
	m, err := r.Open(e.region(region.VMM, sizes...))
	if err != nil {
		t.Fatal(err)
	}
	var answered *ReplyError
	if err := m.Close(); !errors.As(err, &answered) {
		t.Errorf("%v: not what the driver said", err)
	}
	b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}}
	if err := other.Copy(t.Context(), &b); err != nil {
		t.Errorf("another memory of the GPU: %v", err)
	}
}

// An engine may name any GPU. What is kept of those that never served is bounded, and costs no other its place.
func TestGPUsThatDoNotExistAreForgotten(t *testing.T) {
	e, r := startEngine(t, 0), newRig(t, nil)
	files := e.region(region.IPC, granularity)
	served := r.open(files)
	d, err := region.Read(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxDevices + 10 {
		d.Device = fmt.Sprintf("GPU-00000000-0000-0000-0000-%012x", i)
		f, err := region.Seal(d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Open([]*os.File{f}); err == nil || errors.Is(err, gpu.ErrLost) {
			t.Fatalf("%v", err)
		}
		_ = f.Close()
	}
	if n := len(r.Devices()); n != maxDevices {
		t.Errorf("%d are kept, want %d", n, maxDevices)
	}
	b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}}
	if err := served.Copy(t.Context(), &b); err != nil {
		t.Error(err)
	}
}
