package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
	"github.com/kvconn/kvconn/internal/testkit/fakecuda"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// An engine that goes to sleep gives its memory back, and frees it once the daemon has answered or hung up, whatever loads were
// under way: late ones have ended by then, and those that never end have ended with their copier.
func TestMemoryIsUntouchedOnceAnEngineIsPutToSleep(t *testing.T) {
	library := fakecuda.Library(t, fakeLibrary)
	for name, order := range map[string]string{
		"the load is late":        "delay=500000\n",
		"the load never ends":     "cuMemcpyBatchAsync:1+:stall\n",
		"the driver's call hangs": "cuEventSynchronize:1+:hang\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := openDevice(library)
			if err != nil {
				t.Fatal(err)
			}
			f, err := d.make(keyedSlots * keyedBytes)
			if err != nil {
				t.Fatal(err)
			}
			memory, err := unix.Mmap(int(f.Fd()), 0, keyedSlots*keyedBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Munmap(memory) }()
			const blocks = 8
			from, to := memory[:blocks*keyedBytes], memory[blocks*keyedBytes:2*blocks*keyedBytes]
			for i := range from {
				from[i] = byte(i*7 + i>>12)
			}
			n := newNode(t, "--cuda-library", library)
			control := filepath.Join(t.TempDir(), "control")
			if err := os.WriteFile(control, []byte("delay=0\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			n.environ = append(n.environ, "FAKECUDA_CONTROL="+control)
			n.start()
			e := newBareEngine(t, n, d)
			e.page.Reach(100) // all calls have come
			move := func(id string, first uint32) func(b []byte) []byte {
				m := connector.KeyedMove{ID: id, Parts: []connector.KeyedPart{{Hashes: promptHashes(1, blocks)}}}
				for i := range uint32(blocks) {
					m.Parts[0].Slots = append(m.Parts[0].Slots, first+i)
				}
				return func(b []byte) []byte { return wire.AppendMove(b, &m) }
			}
			e.call(wire.OpPut, move("save", 0))
			wait.For(t, "the save", func() bool { return n.status().GPUs[0].SavedBytes == blocks*keyedBytes })
			n.saved()
			if err := os.WriteFile(control+".new", []byte(order), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(control+".new", control); err != nil {
				t.Fatal(err)
			}
			pid := copierOf(t, n)
			e.call(wire.OpFetch, move("load", blocks))
			wait.For(t, "the load is under way", func() bool { return !e.page.Idle() })
			late := name == "the load is late"
			if !late {
				// The daemon hangs up, which says the same, and has the rank register again.
				if err := e.conn.Write(wire.Header{ID: 100, Op: wire.OpUnregister}, wire.AppendEmpty); err != nil {
					t.Fatal(err)
				}
				if err := e.conn.AwaitEOF(time.Now().Add(waitLimit)); err != nil {
					t.Fatal(err)
				}
				if !exiting(t, pid) {
					t.Error("the copier has not ended")
				}
				return
			}
			e.call(wire.OpUnregister, wire.AppendEmpty)
			if !e.page.Idle() || !bytes.Equal(to, from) {
				t.Error("the load has not ended")
			}
			clear(to) // as if it were freed
			if err := os.Remove(control); err != nil {
				t.Fatal(err)
			}
			// Awake again, with the copier of before.
			e.register(d)
			e.page.Reach(100)
			e.call(wire.OpFetch, move("again", blocks))
			wait.For(t, "the load after the sleep", func() bool { return bytes.Equal(to, from) })
			if n.status().GPUs[0].Starts != 1 {
				t.Error("the copier was started again")
			}
		})
	}
}
