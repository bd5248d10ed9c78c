package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/connector/wire"
	"github.com/kvconn/kvconn/internal/testkit/fakecuda"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// bareEngine is an engine of one rank that speaks the protocol by itself, with its memory on a device.
type bareEngine struct {
	t    *testing.T
	conn *wire.Conn
	page *fence.Page
	next uint32
}

func newBareEngine(t *testing.T, n *node, d *deviceMemory) *bareEngine {
	t.Helper()
	c, err := net.Dial("unix", n.socket)
	if err != nil {
		t.Fatal(err)
	}
	e := &bareEngine{t: t, conn: wire.NewConn(c.(*net.UnixConn))}
	t.Cleanup(func() { _ = e.conn.Close() })
	manifest := keyedManifest()
	manifest.Groups = manifest.Groups[:1]
	hello := wire.Hello{
		MinVersion: wire.MaxVersion, MaxVersion: wire.MaxVersion, Role: wire.RoleWorker, Client: "bare", Engine: "bare",
		Manifest: manifest.Canonical(),
	}
	e.call(wire.OpHello, hello.Append)
	e.register(d)
	return e
}

// register registers the memory, with a new page.
func (e *bareEngine) register(d *deviceMemory) {
	e.t.Helper()
	page, f, err := fence.New()
	if err != nil {
		e.t.Fatal(err)
	}
	e.page = page
	e.t.Cleanup(func() { _ = page.Close() })
	regions, err := d.regions()
	if err != nil {
		e.t.Fatal(err)
	}
	layout := connector.Layout{Groups: []connector.GroupLayout{{Blocks: keyedSlots, Runs: []connector.Run{
		{Layers: 1, BlockStride: keyedBytes, Bytes: keyedBytes},
	}}}}
	e.call(wire.OpRegister, func(b []byte) []byte { return wire.AppendLayout(b, &layout) }, append(regions, f)...)
	_ = f.Close()
}

// call makes a call that must succeed.
func (e *bareEngine) call(op wire.Op, body func([]byte) []byte, files ...*os.File) {
	e.t.Helper()
	e.next++
	if err := e.conn.SetDeadline(time.Now().Add(waitLimit)); err != nil {
		e.t.Fatal(err)
	}
	if err := e.conn.Write(wire.Header{ID: e.next, Op: op}, body, files...); err != nil {
		e.t.Fatal(err)
	}
	f, err := e.conn.Read()
	if err != nil || f.Kind != wire.KindReply {
		e.t.Fatalf("%s: %v %q", op, err, f.Body)
	}
}

// exiting reports whether every thread of a process has begun to end, after which none runs code of its own.
func exiting(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(after)
		const atFlags, isExiting = 6, 0x4 // PF_EXITING
		flags, err := strconv.ParseUint(fields[atFlags], 10, 64)
		if err != nil || flags&isExiting == 0 && fields[0] != "Z" && fields[0] != "X" {
			t.Logf("thread %s: %s", path, stat)
			return false
		}
	}
	return true
}

// An engine takes the end of its connection for the proof that nothing touches its memory any more. When the daemon is
// killed in a copy, that end must not come before its copier's.
func TestAKilledDaemonsConnectionsEndAfterItsCopier(t *testing.T) {
	library := fakecuda.Library(t, fakeLibrary)
	for name, disturb := range map[string]func(t *testing.T, n *node, control string){
		"the copy is delayed": func(t *testing.T, _ *node, control string) {
			if err := os.WriteFile(control+".new", []byte("delay=600000000\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(control+".new", control); err != nil {
				t.Fatal(err)
			}
		},
		"the copier stands still": func(t *testing.T, n *node, _ string) {
			if err := syscall.Kill(copierOf(t, n), syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := openDevice(library)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.make(keyedSlots * keyedBytes); err != nil {
				t.Fatal(err)
			}
			n := newNode(t, "--cuda-library", library)
			control := filepath.Join(t.TempDir(), "control")
			if err := os.WriteFile(control, []byte("delay=0\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			n.environ = append(n.environ, "FAKECUDA_CONTROL="+control)
			n.start()
			e := newBareEngine(t, n, d)
			disturb(t, n, control)
			m := connector.KeyedMove{ID: "save", Parts: []connector.KeyedPart{{Hashes: promptHashes(1, 8), Slots: []uint32{0, 1, 2, 3, 4, 5, 6, 7}}}}
			e.page.Reach(1)
			e.call(wire.OpPut, func(b []byte) []byte { return wire.AppendMove(b, &m) })
			wait.For(t, "the copy", func() bool { return !e.page.Idle() })
			pid := copierOf(t, n)
			if err := n.cmd.Process.Kill(); err != nil { // not yet waited for: that would give the copier time
				t.Fatal(err)
			}
			if err := e.conn.AwaitEOF(time.Now().Add(waitLimit)); err != nil {
				t.Fatal(err)
			}
			if !exiting(t, pid) {
				t.Error("the connection has ended while the copier runs")
			}
			if e.page.Idle() {
				t.Error("there was no copy under way")
			}
		})
	}
}

// A connection that the daemon ends in order is seen to end, though the copier had a duplicate of it.
func TestAConnectionThatEndsInOrderIsSeenToEnd(t *testing.T) {
	library := fakecuda.Library(t, fakeLibrary)
	d, err := openDevice(library)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.make(keyedSlots * keyedBytes); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, "--cuda-library", library)
	n.start()
	other, e := newBareEngine(t, n, d), newBareEngine(t, n, d)
	pid := copierOf(t, n)
	// It breaks the protocol, so the daemon hangs up. The copier goes on for the other.
	if err := e.conn.Write(wire.Header{ID: 100, Op: wire.OpMatch}, wire.AppendEmpty); err != nil {
		t.Fatal(err)
	}
	if err := e.conn.AwaitEOF(time.Now().Add(waitLimit)); err != nil {
		t.Error(err)
	}
	if exiting(t, pid) || other.conn.PeerClosed() {
		t.Error("another engine's connection or copier has ended too")
	}
	// What holds the other's is given back with its memory, not with its connection.
	sockets := func() int {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for _, l := range links {
			if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "socket:") {
				count++
			}
		}
		return count
	}
	const control = 2 // the daemon's end, and the copier's watch of it
	if got := sockets(); got != control+1 {
		t.Errorf("the copier has %d sockets, want its own %d and one engine's", got, control)
	}
	other.call(wire.OpUnregister, wire.AppendEmpty)
	if got := sockets(); got != control {
		t.Errorf("the copier has %d sockets, want its own %d", got, control)
	}
}
