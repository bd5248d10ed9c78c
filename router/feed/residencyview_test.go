package feed

import (
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// A machine that has gone says nothing: silence ends a stream, from a heartbeat's time on.
func TestASilentStoreIsAskedAgain(t *testing.T) {
	begin := slices.Concat(hello(1, false), streamNamespace(0, testBlockSize), streamFrame(residencySnapshotEnd, 5, 0))
	server := httptest.NewServer(&scriptedStore{streams: [][]byte{begin}})
	t.Cleanup(server.Close)
	f, err := NewResidency(ResidencyOptions{
		URL: server.URL, BlockSize: testBlockSize, Logger: quiet(), ReconnectMin: time.Microsecond, ReconnectMax: time.Millisecond,
		IdleTimeout: 20 * time.Millisecond,
		Holder:      func(connector.NamespaceDigest, *connector.Manifest) (Holder, bool) { return 1, true },
	}, newMemIndex())
	if err != nil {
		t.Fatal(err)
	}
	background(t, f.Run)
	eventually(t, "another connection", func() bool { return f.Stats().Connects > 1 })
}

func TestBlocksThatWaitForTheirPlaceAreBounded(t *testing.T) {
	x := newMemIndex()
	f, err := NewResidency(ResidencyOptions{
		URL: "http://h/", BlockSize: testBlockSize, Logger: quiet(), MaxWaiting: 2,
		Holder: func(connector.NamespaceDigest, *connector.Manifest) (Holder, bool) { return 1, true },
	}, x)
	if err != nil {
		t.Fatal(err)
	}
	chain := chainRecords(residencyStored, 1, 2, 3, 4, 5) // the first of which comes last
	applyFrames(t, f, hello(1, false), streamNamespace(0, testBlockSize), streamFrame(residencyRecords, 0, slices.Concat(chain[1:4]...)),
		streamFrame(residencySnapshotEnd, 0, 6))
	if s := f.Stats(); s.Waiting != 2 || s.Dropped != 1 {
		t.Errorf("of a snapshot: %+v", s)
	}
	if err := f.frame(streamFrame(residencyRecords, 1, chain[4])[4:], false); err != nil {
		t.Fatal(err)
	}
	if s := f.Stats(); s.Waiting != 2 || s.Dropped != 2 {
		t.Errorf("of what follows it: %+v", s)
	}
	if err := f.frame(streamFrame(residencyRecords, 3, chain[0])[4:], false); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2, 3)...)
}

func TestABlockThatGoesWhileItWaitsDoesNotComeBack(t *testing.T) {
	f, x := newTestResidency(t)
	stored, removed := chainRecords(residencyStored, 1, 2), chainRecords(residencyRemoved, 1, 2)
	applyFrames(t, f, hello(1, false), streamNamespace(0, testBlockSize), streamFrame(residencySnapshotEnd, 0, 0),
		streamFrame(residencyRecords, 1, stored[1]), streamFrame(residencyRecords, 3, removed[1]), streamFrame(residencyRecords, 5, stored[0]))
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
	if n := f.Stats().Waiting; n != 0 {
		t.Errorf("%d blocks wait", n)
	}
}

// The index knows blocks by 8 bytes of their keys; another one with the same is not the parent.
func TestAParentIsItsWholeKey(t *testing.T) {
	f, x := newTestResidency(t)
	keys := keysOf(connector.Scope{}, 1, 2)
	other := keys[0]
	other[len(other)-1] ^= 1
	applyFrames(t, f, hello(1, false), streamNamespace(0, testBlockSize), streamFrame(residencySnapshotEnd, 0, 0),
		streamFrame(residencyRecords, 1, chainRecords(residencyStored, 1)[0]),
		streamFrame(residencyRecords, 3, record(residencyStored, keys[1], other)))
	wantKeys(t, x, 1, keys[0])
}
