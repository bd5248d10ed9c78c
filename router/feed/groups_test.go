package feed

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
)

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
