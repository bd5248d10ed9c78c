package feed

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
)

func TestBlocksThatWaitForTheirPlaceAreBounded(t *testing.T) {
	o := residencyOptions()
	o.MaxWaiting = 2
	f, x := newResidency(t, o)
	blocks := chain(false, 1, 2, 3, 4, 5) // the first one comes last
	s := tell(t, f, hello(1, false), namespace(0, testBlockSize), records(0, blocks[1:4]...), snapshotEnd(0))
	if s := f.Stats(); s.Waiting != 2 || s.Dropped != 1 {
		t.Errorf("of a snapshot: %+v", s)
	}
	s.tell(records(1, blocks[4]))
	if s := f.Stats(); s.Waiting != 2 || s.Dropped != 2 {
		t.Errorf("of what follows it: %+v", s)
	}
	s.tell(records(3, blocks[0]))
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2, 3)...)
}

func TestABlockThatGoesWhileItWaitsDoesNotComeBack(t *testing.T) {
	f, x := newResidency(t, residencyOptions())
	stored, removed := chain(false, 1, 2), chain(true, 1, 2)
	tell(t, f, hello(1, false), namespace(0, testBlockSize), snapshotEnd(0), records(1, stored[1], removed[1], stored[0]))
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
	if n := f.Stats().Waiting; n != 0 {
		t.Errorf("%d blocks wait", n)
	}
}

// The index knows blocks by 8 bytes of their keys; another one with the same is not the parent.
func TestAParentIsItsWholeKey(t *testing.T) {
	f, x := newResidency(t, residencyOptions())
	keys := keysOf(connector.Scope{}, 1, 2)
	other := keys[0]
	other[len(other)-1] ^= 1
	tell(t, f, hello(1, false), namespace(0, testBlockSize), snapshotEnd(0),
		records(1, chain(false, 1)[0], block(false, keys[1], other)))
	wantKeys(t, x, 1, keys[0])
}
