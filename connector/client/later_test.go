package client

import (
	"errors"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
)

func TestSavesThatAreReportedLater(t *testing.T) {
	socket := socketPath(t)
	b := &testBackend{later: true}
	startDaemon(t, socket, b)
	w := newWorker(t, testOptions(socket))
	w.SaveLater(t.Context(), "save", []byte("plan"))
	if got := w.Stored(); len(got) != 0 {
		t.Errorf("Stored = %+v before the daemon reports it", got)
	}
	w.Revoke([]uint32{3, 4, 9})
	w.Poll(t.Context())
	if got := w.Stored(); len(got) != 1 || got[0].ID != "save" || got[0].Taken != 3 {
		t.Errorf("Stored = %+v", got)
	}
	w.SaveLater(t.Context(), "next", []byte("plan"))
	if !b.called("save save after 0") || !b.called("save next after 2") {
		t.Errorf("calls %v", b.calls)
	}
	w.Put(t.Context(), keyedMove("put", 1))
	w.SaveLater(t.Context(), "none", nil)
	if got := w.Stored(); len(got) != 1 || got[0].ID != "none" {
		t.Errorf("Stored = %+v, want the save of nothing", got)
	}
}

// A daemon that copies before it answers reports nothing: the client does.
func TestSavesThatHaveEndedAtTheAnswerAreReportedToo(t *testing.T) {
	socket := socketPath(t)
	startDaemon(t, socket, &testBackend{silent: true})
	w := newWorker(t, testOptions(socket))
	w.SaveLater(t.Context(), "save", []byte("plan"))
	w.Poll(t.Context())
	want := []connector.StoredPut{{ID: "save", SaveResult: connector.SaveResult{Taken: 1, Present: 2}}}
	if got := w.Stored(); !slices.Equal(got, want) {
		t.Errorf("Stored = %+v, want %+v", got, want)
	}
}

func TestSavesOfADaemonThatIsGoneAreReportedOnce(t *testing.T) {
	socket := socketPath(t)
	b := &testBackend{later: true, silent: true}
	d := startDaemon(t, socket, b)
	w := newWorker(t, testOptions(socket))
	w.SaveLater(t.Context(), "save", []byte("plan"))
	d.stop()
	w.SaveLater(t.Context(), "nobody's", []byte("plan"))
	w.Revoke([]uint32{1}) // there is no page
	w.Poll(t.Context())
	got := w.Stored()
	if len(got) != 2 || got[0].ID == got[1].ID || got[0].Taken+got[1].Taken != 0 {
		t.Errorf("Stored = %+v", got)
	}
	w.Poll(t.Context())
	if got := w.Stored(); len(got) != 0 {
		t.Errorf("Stored = %+v again", got)
	}
	startDaemon(t, socket, b)
	w.SaveLater(t.Context(), "other", []byte("plan"))
	if !b.called("save other after 1") {
		t.Errorf("calls %v", b.calls)
	}
}

func TestRefusedSaveOfAPlanIsReported(t *testing.T) {
	socket := socketPath(t)
	startDaemon(t, socket, &testBackend{loadErr: errors.New("no such plan")})
	w := newWorker(t, testOptions(socket))
	w.SaveLater(t.Context(), "save", []byte("plan"))
	if got := w.Stored(); len(got) != 1 || got[0].ID != "save" || got[0].Taken != 0 {
		t.Errorf("Stored = %+v", got)
	}
}

// The page says what is revoked although the client is in the middle of a call, and the next page says it, too.
func TestRevokingWaitsForNoCall(t *testing.T) {
	socket := socketPath(t)
	startDaemon(t, socket, new(testBackend))
	w := newWorker(t, testOptions(socket))
	if err := w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock() // as a call does
	defer w.mu.Unlock()
	w.Revoke([]uint32{5})
	var r fence.Revoked
	if w.page.ReadRevoked(0, &r); !r.Has(5) || r.Has(6) {
		t.Error("the page does not say that block 5 is revoked, and only that")
	}
	w.link.lose()
	w.Revoke([]uint32{6})
	if err := w.link.ensure(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if w.page.ReadRevoked(0, &r); !r.Has(5) || !r.Has(6) || r.Has(7) {
		t.Error("the new page does not say what was revoked before it")
	}
}
