package client

import (
	"errors"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
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
	w.Put(t.Context(), keyedMove("save", 1, 2, 3))
	w.Fetch(t.Context(), &connector.KeyedMove{ID: "load", Request: "r", Parts: keyedMove("", 4).Parts})
	if got := w.Poll(t.Context()); len(got) != 1 || got[0].Request != "load" || len(got[0].FailedBlocks) != 0 {
		t.Errorf("Poll = %+v, want the fetch", got)
	}
	if got := w.Stored(); len(got) != 1 || got[0].ID != "save" || got[0].Taken != 3 {
		t.Errorf("Stored = %+v, want the put", got)
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
