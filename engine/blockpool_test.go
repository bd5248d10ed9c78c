package engine

import (
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

func TestLeastRecentlyUsedBlocksAreHandedOutFirstAndEndsOfPromptsBeforeBeginnings(t *testing.T) {
	p := newBlockPool(7)
	keys := []connector.Key{{1}, {2}, {3}, {4}}
	first, _ := p.take(2)
	second, _ := p.take(2)
	for i, b := range append(slices.Clone(first), second...) {
		p.publish(b, keys[i])
	}
	p.release(first)
	p.release(second)
	if got := p.find([]connector.Key{{1}, {2}, {9}}); !slices.Equal(got, first) {
		t.Fatalf("found %v, want %v", got, first)
	}
	p.hold(first[:1])
	p.release(first[:1])
	// Two blocks were never used; then go first[1], second from its end, first[0].
	got, ok := p.take(6)
	if want := []uint32{5, 6, first[1], second[1], second[0], first[0]}; !ok || !slices.Equal(got, want) {
		t.Errorf("handed out %v, want %v", got, want)
	}
	if p.find(keys) != nil {
		t.Error("blocks that were handed out are still found")
	}
	if _, ok := p.take(1); ok {
		t.Error("a block was handed out twice")
	}
}

func TestSharedBlocksBecomeFreeWithTheirLastHolder(t *testing.T) {
	p := newBlockPool(3)
	b, _ := p.take(1)
	p.hold(b)
	p.release(b)
	if p.free != 1 {
		t.Errorf("%d blocks free, want 1", p.free)
	}
	p.release(b)
	if p.free != 2 {
		t.Errorf("%d blocks free, want 2", p.free)
	}
	defer func() {
		if recover() == nil {
			t.Error("a block was released by more than its holders")
		}
	}()
	p.release(b)
}
