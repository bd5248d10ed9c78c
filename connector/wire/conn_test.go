package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

// pair is two connected sockets, one of them wrapped.
func pair(t testing.TB) (*Conn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	c := NewConn(ends[0])
	t.Cleanup(func() { _ = c.Close(); _ = ends[1].Close() })
	return c, ends[1]
}

func body(b []byte) func([]byte) []byte {
	return func(out []byte) []byte { return append(out, b...) }
}

func TestFramesOfEverySizeArriveInOrder(t *testing.T) {
	in, raw := pair(t)
	out := NewConn(raw)
	sizes := []int{0, 1, readAhead - HeaderBytes, readAhead - HeaderBytes + 1, 3 * readAhead, 5, keepBody + 1, MaxBodyBytes, 7}
	go func() {
		for i, n := range sizes {
			if err := out.Write(Header{ID: uint32(i), Op: OpMatch}, body(bytes.Repeat([]byte{byte(i)}, n))); err != nil {
				t.Error(err)
			}
		}
		_ = out.Close()
	}()
	for i, n := range sizes {
		f, err := in.Read()
		if err != nil {
			t.Fatal(err)
		}
		if f.ID != uint32(i) || !bytes.Equal(f.Body, bytes.Repeat([]byte{byte(i)}, n)) {
			t.Fatalf("frame %d: id %d with %d bytes, want %d bytes of %d", i, f.ID, len(f.Body), n, i)
		}
	}
	if _, err := in.Read(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last frame: %v, want EOF", err)
	}
}

func TestDescriptorsTravelWithTheirFrame(t *testing.T) {
	in, raw := pair(t)
	out := NewConn(raw)
	names := []string{"one", "two", "three"}
	var files []*os.File
	for _, name := range names {
		f := memfd.New(t, 0)
		if _, err := f.WriteString(name); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	// Frames without, with two, without, and with one descriptor, written before any is
	// read.
	for i, send := range [][]*os.File{nil, files[:2], nil, files[2:]} {
		if err := out.Write(Header{ID: uint32(i), Op: OpRegister}, body([]byte("layout")), send...); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for i, want := range []int{0, 2, 0, 1} {
		f, err := in.Read()
		if err != nil || len(f.Files) != want {
			t.Fatalf("frame %d: %d descriptors, %v; want %d", i, len(f.Files), err, want)
		}
		for _, file := range f.Files {
			b := make([]byte, 8)
			n, _ := file.ReadAt(b, 0)
			got = append(got, string(b[:n]))
			_ = file.Close()
		}
	}
	for i := range names {
		if got[i] != names[i] {
			t.Errorf("descriptors arrived as %v, want %v", got, names)
		}
	}
}

func TestBrokenFramesAreProtocolErrors(t *testing.T) {
	header := func(change func(b []byte)) []byte {
		var b [HeaderBytes]byte
		(&Header{ID: 1, Op: OpMatch}).put(b[:])
		change(b[:])
		return b[:]
	}
	for _, tc := range []struct {
		name string
		in   []byte
		want error
	}{
		{"garbage", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), connector.ErrProtocol},
		{"unknown op", header(func(b []byte) { b[8] = 99 }), connector.ErrProtocol},
		{"unknown kind", header(func(b []byte) { b[9] = 3 }), connector.ErrProtocol},
		{"reserved byte", header(func(b []byte) { b[11] = 1 }), connector.ErrProtocol},
		{"length beyond the bound", header(func(b []byte) { copy(b, []byte{1, 0, 0, 1}) }), connector.ErrProtocol},
		{"announced descriptors missing", header(func(b []byte) { b[10] = 1 }), connector.ErrProtocol},
		{"too many descriptors", header(func(b []byte) { b[10] = MaxFDs + 1 }), connector.ErrProtocol},
		{"cut header", header(func([]byte) {})[:7], io.ErrUnexpectedEOF},
		{"cut body", header(func(b []byte) { b[0] = 9 }), io.ErrUnexpectedEOF},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in, raw := pair(t)
			if _, err := raw.Write(tc.in); err != nil {
				t.Fatal(err)
			}
			_ = raw.Close()
			if _, err := in.Read(); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

func TestSurplusDescriptorsAreProtocolErrorsAndClosed(t *testing.T) {
	in, raw := pair(t)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var b [HeaderBytes]byte
	(&Header{ID: 1, Op: OpMatch}).put(b[:])
	if _, _, err := raw.WriteMsgUnix(b[:], unix.UnixRights(int(f.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Read(); !errors.Is(err, connector.ErrProtocol) {
		t.Errorf("%v, want ErrProtocol", err)
	}
	received := in.files[0]
	_ = in.Close()
	if err := received.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the surplus descriptor was left open (%v)", err)
	}
}

func TestFrameBeyondTheBoundIsNotSent(t *testing.T) {
	_, raw := pair(t)
	out := NewConn(raw)
	err := out.Write(Header{Op: OpMatch}, body(make([]byte, MaxBodyBytes+1)))
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
}

func FuzzConnRead(f *testing.F) {
	var b [HeaderBytes]byte
	(&Header{Length: 2, ID: 1, Op: OpMatch}).put(b[:])
	f.Add(append(b[:], 0x80, 0xc0))
	f.Fuzz(func(t *testing.T, stream []byte) {
		in, raw := pair(t)
		go func() {
			_, _ = raw.Write(stream)
			_ = raw.Close()
		}()
		for {
			if _, err := in.Read(); err != nil {
				return
			}
		}
	})
}
