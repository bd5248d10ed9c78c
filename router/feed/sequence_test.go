package feed

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// A process that was started anew may be at the very number that was expected of the old one.
func TestTheExpectedNumberProvesNothingOnANewConnection(t *testing.T) {
	var s sequence
	for seq, want := range []verdict{inOrder, inOrder, inOrder} {
		if got := s.live(uint64(seq)); got != want {
			t.Fatalf("batch %d: verdict %d", seq, got)
		}
		s.applied(uint64(seq))
	}
	s.connected()
	if got := s.live(3); got != restarted {
		t.Errorf("verdict %d", got)
	}
	s.forget()
	s.applied(3)
	if got := s.live(4); got != inOrder {
		t.Errorf("the next one: verdict %d", got)
	}
	s.applied(4)
	// A replay that has the last batch as it was proves that the process is the same.
	s.connected()
	s.unsure = false
	if got := s.live(5); got != inOrder {
		t.Errorf("a confirmed process: verdict %d", got)
	}
}

// Of several groups with full attention an engine needs the block in each.
func TestABlockThatOneOfItsGroupsHasDroppedIsGone(t *testing.T) {
	inGroup := func(e []byte, n int) []byte { // one more field, for maps of up to 15
		e = append([]byte{e[0] + 1}, e[1:]...)
		return append(e, field("group_idx", n)...)
	}
	full := func(n int) [][]byte {
		return [][]byte{field("group_idx", n), field("kv_cache_spec_kind", "full_attention")}
	}
	for dropped := range 2 {
		x := newMemIndex()
		g := newTestIngest(t, x)
		for _, e := range [][]byte{
			storedEvent(0, []uint64{1, 2}, full(0)...), storedEvent(0, []uint64{1, 2}, full(1)...),
			inGroup(removedEvent(2), dropped),
		} {
			if _, err := g.Batch(eventBatch(e)); err != nil {
				t.Fatal(err)
			}
		}
		wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
	}
}
