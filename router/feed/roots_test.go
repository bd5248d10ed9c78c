package feed

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

func newTestResidency(t *testing.T) (*Residency, *memIndex) {
	t.Helper()
	x := newMemIndex()
	x.keyed = true
	f, err := NewResidency(ResidencyOptions{
		URL: "http://h/", BlockSize: testBlockSize, Logger: quiet(),
		Holder: func(connector.NamespaceDigest, *connector.Manifest) (Holder, bool) { return 1, true },
	}, x)
	if err != nil {
		t.Fatal(err)
	}
	return f, x
}

// applyFrames applies frames, the first of which begins a stream.
func applyFrames(t *testing.T, f *Residency, frames ...[]byte) {
	t.Helper()
	for i, b := range frames {
		if err := f.frame(b[4:], i == 0); err != nil {
			t.Fatal(err)
		}
	}
}

// scopedRecord is the first block of a scope's prompt.
func scopedRecord(s connector.Scope, n uint64) []byte {
	return record(residencyStored, keysOf(s, n)[0], connector.RootKey(testBlockSize, s))
}

// However many tenants there are, prompts without a scope keep their place.
func TestManyScopesDoNotDrivePlainPromptsOut(t *testing.T) {
	f, x := newTestResidency(t)
	applyFrames(t, f, hello(1, false), streamNamespace(0, testBlockSize), streamFrame(residencySnapshotEnd, 0, 0))
	var root connector.Key
	for i := range 20 * maxRoots {
		binary.LittleEndian.PutUint64(root[:], uint64(i)+1)
		f.NoteRoot(root)
	}
	if n := len(f.roots.known); n > maxRoots {
		t.Errorf("%d roots are kept", n)
	}
	if !f.roots.has(root) {
		t.Error("the last root is not known")
	}
	if err := f.frame(streamFrame(residencyRecords, 1, chainRecords(residencyStored, 1)[0])[4:], false); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
}

// Decisions note roots: they must not wait until a large snapshot has been applied.
func TestNotingARootDoesNotWaitForTheStream(t *testing.T) {
	s := connector.Scope{Salt: "tenant"}
	root := connector.RootKey(testBlockSize, s)
	f, x := newTestResidency(t)
	applyFrames(t, f, hello(1, false), streamNamespace(0, testBlockSize), streamFrame(residencySnapshotEnd, 0, 0),
		streamFrame(residencyRecords, 1, scopedRecord(s, 1)))
	f.mu.Lock() // a frame is being applied
	f.NoteRoot(root)
	wantKeys(t, x, 1)
	f.unlock()
	wantKeys(t, x, 1, keysOf(s, 1)...)
	if n := f.Stats().Waiting; n != 0 {
		t.Errorf("%d blocks wait", n)
	}
}

// A store that claims to resume what nobody has begun is refused, whatever epoch it names.
func TestAStreamThatResumesNothingIsRefused(t *testing.T) {
	for _, epoch := range []int{0, 1} {
		f, _ := newTestResidency(t)
		err := f.frame(hello(epoch, true)[4:], true)
		if err == nil {
			err = f.frame(streamNamespace(0, testBlockSize)[4:], false)
		}
		if !errors.Is(err, errResidencyFrame) {
			t.Errorf("epoch %d: %v", epoch, err)
		}
	}
}

func TestASnapshotThatLacksRecordsIsNotTaken(t *testing.T) {
	f, x := newTestResidency(t)
	one := chainRecords(residencyStored, 1)[0]
	applyFrames(t, f, hello(1, false), streamNamespace(0, testBlockSize), streamFrame(residencyRecords, 0, one))
	if err := f.frame(streamFrame(residencySnapshotEnd, 9, 4)[4:], false); !errors.Is(err, errResidencyGap) {
		t.Errorf("%v", err)
	}
	wantKeys(t, x, 1)
}

// Once the feed has ended its holders may belong to someone else.
func TestAnEndedFeedForgetsNothing(t *testing.T) {
	f, x, _ := followStore(t, slices.Concat(hello(1, false), streamNamespace(0, testBlockSize),
		streamFrame(residencyRecords, 0, chainRecords(residencyStored, 1)[0]), streamFrame(residencySnapshotEnd, 5, 2)))
	eventually(t, "a block", func() bool { return len(x.keys(1)) == 1 })
	f.mu.Lock()
	f.stats.Connected, f.ended = false, true
	f.unlock()
	f.forget()
	if len(x.keys(1)) != 1 {
		t.Error("blocks of a holder that is another's were forgotten")
	}
}
