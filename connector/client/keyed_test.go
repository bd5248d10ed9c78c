package client

import (
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// keyedMove moves as many blocks as slots.
func keyedMove(id string, slots ...uint32) *connector.KeyedMove {
	return &connector.KeyedMove{ID: id, Parts: []connector.KeyedPart{{Hashes: make([]connector.Proof, len(slots)), Slots: slots}}}
}

func TestCallsByKeyReachTheSession(t *testing.T) {
	socket := socketPath(t)
	b := new(testBackend)
	startDaemon(t, socket, b)
	w, s := newWorker(t, testOptions(socket)), newScheduler(t, testOptions(socket))
	if bits := w.Present(t.Context(), &connector.PresentRequest{Hashes: make([]connector.Proof, 3)}); len(bits) != 1 || !slices.Equal(bits[0], []byte{7}) {
		t.Errorf("Present = %v, want three bits", bits)
	}
	if bits := w.Present(t.Context(), &connector.PresentRequest{Hashes: make([]connector.Proof, 9)}); bits != nil {
		t.Errorf("Present = %v, which is no answer for nine blocks", bits)
	}
	w.Put(t.Context(), keyedMove("save", 1, 2, 3))
	w.Fetch(t.Context(), &connector.KeyedMove{ID: "load", Request: "r", Parts: keyedMove("", 4).Parts})
	if got := w.Poll(t.Context()); len(got) != 1 || got[0].Request != "load" || len(got[0].FailedBlocks) != 0 {
		t.Errorf("Poll = %+v, want the fetch", got)
	}
	if got := w.Stored(); len(got) != 1 || got[0].ID != "save" || got[0].Taken != 3 {
		t.Errorf("Stored = %+v, want the put", got)
	}
	// Poll reports the end of a load here, whoever says that a call waits for it.
	waiting := keyedMove("load", 5)
	waiting.Wait = time.Second
	w.Fetch(t.Context(), waiting)
	if got := w.Poll(t.Context()); len(got) != 1 || got[0].Request != "load" || len(got[0].FailedBlocks) != 0 {
		t.Errorf("Poll = %+v, want the fetch", got)
	}
	w.Touch(t.Context(), &connector.TouchRequest{Request: "r"})
	if !b.called("touch r") || !b.called("fetch load of r") || len(w.Stored()) != 0 {
		t.Errorf("calls %v", b.calls)
	}
	if s.Reset(t.Context()); !b.called("reset") {
		t.Error("the reset did not arrive")
	}
}

// A save by key keeps its slots while a copy is under way, like a load.
func TestSavesByKeyAreReportedAsDroppedOnceNothingIsCopied(t *testing.T) {
	b, _, w := copyingWorker(t, nil)
	defer close(b.release)
	w.Put(t.Context(), keyedMove("save", 1, 2))
	giveUpSave(t, b, w)
	if w.Poll(t.Context()); len(w.Stored()) != 0 {
		t.Error("the save is reported while a copy is under way")
	}
	b.endCopies()
	wantFailed(t, pollFor(t, w), "load")
	if got := w.Stored(); len(got) != 1 || got[0].ID != "save" || got[0].Dropped != 2 {
		t.Errorf("Stored = %+v", got)
	}
}

func TestRefusedSaveIsReportedAsDropped(t *testing.T) {
	_, _, w := copyingWorker(t, func(b *testBackend) { b.copying, b.loadErr = false, errors.New("no such group") })
	w.Put(t.Context(), keyedMove("save", 1))
	if got := w.Stored(); len(got) != 1 || got[0].Dropped != 1 {
		t.Errorf("Stored = %+v", got)
	}
}

// An older daemon takes a load by key for one of no blocks, and reports it as loaded.
func TestLoadsByKeyNeedADaemonThatKnowsThem(t *testing.T) {
	socket := socketPath(t)
	serveOlderDaemon(t, socket)
	o := testOptions(socket)
	o.Manifest.KeyScheme = connector.KeySchemeEngine
	w := newWorker(t, o)
	w.Fetch(t.Context(), keyedMove("load", 1, 2))
	if got := w.Poll(t.Context()); len(got) != 1 || !slices.Equal(got[0].FailedBlocks, []uint32{1, 2}) {
		t.Errorf("Poll = %+v, want both blocks failed", got)
	}
}

// serveOlderDaemon answers one connection after the other as a daemon of protocol 3 does, whatever
// the client asks for.
func serveOlderDaemon(t *testing.T, socket string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	answer := map[wire.Op]func([]byte) []byte{
		wire.OpHello:    (&wire.HelloReply{Version: 3, Server: "older", LoadTimeoutMS: 60_000}).Append,
		wire.OpRegister: func(b []byte) []byte { return wire.AppendRegisterReply(b, []int{4096}) },
		wire.OpFetch:    wire.AppendEmpty,
		wire.OpPoll: func(b []byte) []byte {
			return wire.AppendPolled(b, &connector.Polled{Finished: []connector.FinishedLoad{{Request: "load"}}})
		},
	}
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			conn := wire.NewConn(c)
			for f, err := conn.Read(); err == nil; f, err = conn.Read() {
				f.CloseFiles()
				_ = conn.Write(wire.Header{ID: f.ID, Op: f.Op, Kind: wire.KindReply, Epoch: 1}, answer[f.Op])
			}
			_ = conn.Close()
		}
	}()
}
