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
		p.publish(b, content{0, keys[i]})
	}
	p.release(first)
	p.release(second)
	full := []connector.Group{{}}
	if got := p.find([]connector.Key{{1}, {2}, {9}}, full, 16)[0]; !slices.Equal(got, first) {
		t.Fatalf("found %v, want %v", got, first)
	}
	p.hold(first[:1])
	p.release(first[:1])
	// Two blocks were never used; then go first[1], second from its end, first[0].
	got, ok := p.take(6)
	if want := []uint32{5, 6, first[1], second[1], second[0], first[0]}; !ok || !slices.Equal(got, want) {
		t.Errorf("handed out %v, want %v", got, want)
	}
	if len(p.find(keys, full, 16)[0]) != 0 {
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

func TestHitNeedsTheWholePrefixWithFullAttentionAndTheWindowElse(t *testing.T) {
	groups := []connector.Group{{}, {Window: 24}}
	keys := []connector.Key{{1}, {2}, {3}, {4}, {5}, {6}}
	const none = connector.NoBlock
	for name, x := range map[string]struct {
		full, window []int
		want         [][]uint32
	}{
		"everything":           {[]int{0, 1, 2, 3, 4, 5}, []int{0, 1, 2, 3, 4, 5}, [][]uint32{{1, 2, 3, 4, 5, 6}, {none, none, none, none, 11, 12}}},
		"window only":          {[]int{0, 1, 2, 3, 4, 5}, []int{4, 5}, [][]uint32{{1, 2, 3, 4, 5, 6}, {none, none, none, none, 11, 12}}},
		"end of window gone":   {[]int{0, 1, 2, 3, 4, 5}, []int{2, 3, 4}, [][]uint32{{1, 2, 3, 4, 5}, {none, none, none, 10, 11}}},
		"hole in the window":   {[]int{0, 1, 2, 3, 4, 5}, []int{0, 1, 3, 5}, [][]uint32{{1, 2}, {7, 8}}},
		"end of prefix gone":   {[]int{0, 1, 2}, []int{0, 1, 2, 3, 4, 5}, [][]uint32{{1, 2, 3}, {none, 8, 9}}},
		"start of prefix gone": {[]int{1, 2}, []int{0, 1, 2, 3, 4, 5}, [][]uint32{{}, {}}},
		"no window":            {[]int{0, 1, 2, 3}, nil, [][]uint32{{}, {}}},
	} {
		p := newBlockPool(13)
		blocks, _ := p.take(12)
		for g, known := range [][]int{x.full, x.window} {
			for _, i := range known {
				p.publish(blocks[6*g+i], content{g, keys[i]})
			}
		}
		if got := p.find(keys, groups, 16); !slices.EqualFunc(got, x.want, slices.Equal[[]uint32]) {
			t.Errorf("%s: found %v, want %v", name, got, x.want)
		}
	}
}
