package feed

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/residency"
)

// However many tenants there are, prompts without a scope keep their place.
func TestManyScopesDoNotDrivePlainPromptsOut(t *testing.T) {
	f, x := newResidency(t, residencyOptions())
	s := tell(t, f, hello(1, false), namespace(0, testBlockSize), snapshotEnd(0))
	var root connector.Key
	for i := range 8 * maxRoots {
		binary.LittleEndian.PutUint64(root[:], uint64(i)+1)
		f.NoteRoot(root)
	}
	if n := len(f.roots.known); n > maxRoots {
		t.Errorf("%d roots are kept", n)
	}
	if !f.roots.has(root) {
		t.Error("the last root is not known")
	}
	s.tell(records(1, chain(false, 1)[0]))
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
}

// Decisions note roots: they must not wait until a large snapshot has been applied.
func TestNotingARootDoesNotWaitForTheStream(t *testing.T) {
	scope := connector.Scope{Salt: "tenant"}
	root := connector.RootKey(testBlockSize, scope)
	f, x := newResidency(t, residencyOptions())
	tell(t, f, hello(1, false), namespace(0, testBlockSize), snapshotEnd(0),
		records(1, block(false, keysOf(scope, 1)[0], root)))
	f.mu.Lock() // a frame is being applied
	f.NoteRoot(root)
	wantKeys(t, x, 1)
	f.unlock()
	wantKeys(t, x, 1, keysOf(scope, 1)...)
	if n := f.Stats().Waiting; n != 0 {
		t.Errorf("%d blocks wait", n)
	}
}

// What a stream would resume may have been forgotten since it was asked for.
func TestAStreamThatResumesWhatIsForgottenIsRefused(t *testing.T) {
	f, _ := newResidency(t, residencyOptions())
	err := f.apply(residency.Hello{Epoch: 1, Resumed: true}, residency.Position{Epoch: 1, Seq: 5})
	if !errors.Is(err, residency.ErrMalformed) {
		t.Errorf("%v", err)
	}
}

func TestASnapshotCountsOnceItIsComplete(t *testing.T) {
	f, x := newResidency(t, residencyOptions())
	s := tell(t, f, hello(1, false), namespace(0, testBlockSize), records(0, chain(false, 1)[0]))
	wantKeys(t, x, 1)
	if st := f.Stats(); st.State != StateStale || f.position() != (residency.Position{}) {
		t.Errorf("%+v, to be resumed at %+v", st, f.position())
	}
	s.tell(snapshotEnd(9))
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
	if want := (residency.Position{Epoch: 1, Seq: 9}); f.position() != want {
		t.Errorf("to be resumed at %+v, want %+v", f.position(), want)
	}
}
