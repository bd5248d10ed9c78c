package copier

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Op is what the daemon asks of a copier.
type Op string

// Operations.
const (
	// Start is the first: the copier loads the driver. Its files are the arena and those of the ring.
	Start Op = "start"
	// Open maps a rank's memory. Its files are the descriptions, and the socket of exports if there is one.
	Open Op = "open"
	// Close unmaps it.
	Close Op = "close"
)

// Request is one question, a JSON text in one packet with its descriptors beside it.
type Request struct {
	Op Op `json:"op"`
	// Memory is the number by which batches name what Open opened.
	Memory uint32 `json:"memory,omitempty"`
	// Stream is set if the last file of Open is the socket of exports.
	Stream bool `json:"stream,omitempty"`
	// Connection is set if the last file of Open, after Stream's, is the engine's connection, which the copier holds until
	// the memory is closed.
	Connection bool `json:"connection,omitempty"`
	// Device is the UUID of the GPU, Library the driver's, ArenaBytes the size of the arena: of Start.
	Device     string `json:"device,omitempty"`
	Library    string `json:"library,omitempty"`
	ArenaBytes int64  `json:"arena_bytes,omitempty"`
}

// Reply is its answer.
type Reply struct {
	// Error is empty if it went well. Cause says what callers decide on.
	Error string `json:"error,omitempty"`
	Cause Cause  `json:"cause,omitempty"`
	// Device is what Start found.
	Device *DeviceInfo `json:"device,omitempty"`
}

// Cause of an error.
type Cause string

// Causes.
const (
	// CauseDriver: no driver, or one that cannot be used.
	CauseDriver Cause = "driver"
	// CauseDevice: this process sees no such GPU.
	CauseDevice Cause = "device"
	// CauseMemory: what the engine passed cannot be opened.
	CauseMemory Cause = "memory"
	// CauseSticky: the context is dead. The copier ends when it has said so.
	CauseSticky Cause = "sticky"
)

// DeviceInfo is what status shows of a device.
type DeviceInfo struct {
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	Driver   string `json:"driver"`
	NUMANode int    `json:"numa_node"`
	Batch    bool   `json:"batch_copies"`
	// KernelError is why runs cannot be collected by a kernel, empty if they can.
	KernelError string `json:"kernel_error,omitempty"`
	FreeBytes   int64  `json:"free_bytes"`
	TotalBytes  int64  `json:"total_bytes"`
}

const (
	// maxPacketBytes bounds a message: descriptions travel as files.
	maxPacketBytes = 16 << 10
	// MaxFiles of one message. An engine's registration has 17 at most, and its connection.
	MaxFiles = 32
)

// ErrHungUp means that the other side has closed its end, or has died.
var ErrHungUp = errors.New("the other side has hung up")

// Conn is one end of the socket between daemon and copier. Calls must not run side by side.
type Conn struct {
	c   *net.UnixConn
	buf [maxPacketBytes]byte
	oob []byte
}

// NewConn takes over one end of a pair of sockets that keep packets apart.
func NewConn(f *os.File) (*Conn, error) {
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("socket between daemon and copier: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("socket between daemon and copier: it is no Unix socket")
	}
	return &Conn{c: u, oob: make([]byte, unix.CmsgSpace(MaxFiles*4))}, nil
}

// Pair makes both ends.
func Pair() (daemon, copier *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket between daemon and copier: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "kvconn-copier"), os.NewFile(uintptr(fds[1]), "kvconn-copier"), nil
}

// Close closes this end.
func (c *Conn) Close() error { return c.c.Close() }

// Limit has calls that take longer than this from now on fail with os.ErrDeadlineExceeded.
func (c *Conn) Limit(timeout time.Duration) error {
	if err := c.c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("deadline between daemon and copier: %w", err)
	}
	return nil
}

// OnHangUp calls f once the other side has closed its end, even while this side is busy.
func (c *Conn) OnHangUp(f func()) error {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return fmt.Errorf("socket between daemon and copier: %w", err)
	}
	fd := -1
	if ctlErr := raw.Control(func(s uintptr) { fd, err = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) }); ctlErr != nil {
		err = ctlErr
	}
	if err != nil {
		return fmt.Errorf("socket between daemon and copier: %w", err)
	}
	go func() {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		for {
			if _, err := unix.Poll(fds, -1); err == nil && fds[0].Revents != 0 {
				break
			}
		}
		_ = unix.Close(fd)
		f()
	}()
	return nil
}

// Send sends a message with its files, which stay the caller's.
func (c *Conn) Send(message any, files ...*os.File) error {
	text, err := json.Marshal(message)
	if err == nil && (len(text) > maxPacketBytes || len(files) > MaxFiles) {
		err = fmt.Errorf("%d bytes with %d files", len(text), len(files))
	}
	if err != nil {
		return fmt.Errorf("message between daemon and copier: %w", err)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			if fds[i], err = descriptor(f); err != nil {
				return fmt.Errorf("message between daemon and copier: %w", err)
			}
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.c.WriteMsgUnix(text, rights, nil)
	runtime.KeepAlive(files)
	if err != nil {
		return fmt.Errorf("send between daemon and copier: %w", err)
	}
	return nil
}

// descriptor is that of a file, as long as the file stays open. Unlike Fd it leaves alone whether calls block: a socket
// shares that with all its duplicates.
func descriptor(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	n := -1
	err = raw.Control(func(fd uintptr) { n = int(fd) })
	return n, err
}

// Receive receives a message. Its files are the caller's.
func (c *Conn) Receive(message any) ([]*os.File, error) {
	n, oobn, flags, _, err := c.c.ReadMsgUnix(c.buf[:], c.oob)
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		return nil, ErrHungUp
	}
	if err != nil {
		return nil, fmt.Errorf("receive between daemon and copier: %w", err)
	}
	files, err := rights(c.oob[:oobn])
	switch {
	case err != nil:
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errors.New("the message was cut")
	default:
		err = json.Unmarshal(c.buf[:n], message)
	}
	if err != nil {
		CloseAll(files)
		return nil, fmt.Errorf("receive between daemon and copier: %w", err)
	}
	return files, nil
}

// rights are the descriptors of a message. An engine that set options of its socket has the kernel add others: its
// credentials, and a descriptor of its process, which is closed.
func rights(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		m := &messages[i]
		switch {
		case m.Header.Level != unix.SOL_SOCKET:
			continue
		case m.Header.Type == unix.SCM_PIDFD && len(m.Data) >= 4:
			_ = unix.Close(int(int32(binary.NativeEndian.Uint32(m.Data))))
			continue
		case m.Header.Type != unix.SCM_RIGHTS:
			continue
		}
		fds, err := unix.ParseUnixRights(m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// CloseAll closes files.
func CloseAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
