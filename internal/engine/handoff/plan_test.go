package handoff

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
)

// twoShards is an offer of blocks 2 to 5.
func twoShards() *connector.HandoffOffer {
	o := &connector.HandoffOffer{First: 2}
	for shard := range connector.Shard(2) {
		s := connector.HandoffShard{Shard: shard}
		for i := range 4 {
			s.Blocks = append(s.Blocks, connector.HandoffBlock{Offset: uint64(shard)<<32 + uint64(i)<<12, Sum: uint64(i)})
		}
		o.Shards = append(o.Shards, s)
	}
	return o
}

func TestOfferIsTakenInPart(t *testing.T) {
	m := manifests.New(func(m *connector.Manifest) { m.TensorParallel = 2 })
	o := twoShards()
	l := planLoad(o, &connector.Alloc{Request: "r", Blocks: [][]uint32{{9, 8, 7, connector.NoBlock, 5, 4}}, Computed: 32, External: 48}, m)
	if len(l.Stretches) != 2 || l.Stretches[0].Slots[0] != 7 || l.Stretches[1].Slots[0] != 5 || len(l.Stretches[1].Slots) != 1 {
		t.Fatalf("%+v", l)
	}
	if s := l.Stretches[1].Shards; len(s) != 2 || s[1].Blocks[0].Offset != 1<<32+2<<12 {
		t.Errorf("block 4 lies at %+v", s)
	}
	whole := connector.Alloc{Blocks: [][]uint32{make([]uint32, 6)}, Computed: 32, External: 64}
	for _, s := range planLoad(o, &whole, m).Stretches {
		if len(s.Shards) != 2 || len(s.Slots) != 4 {
			t.Errorf("%d shards of %d blocks, want 2 of all 4", len(s.Shards), len(s.Slots))
		}
	}
	partial := twoShards()
	partial.Shards = partial.Shards[:1]
	for name, tc := range map[string]struct {
		o *connector.HandoffOffer
		a connector.Alloc
	}{
		"one shard lacks":    {partial, whole},
		"more than offered":  {o, connector.Alloc{Blocks: [][]uint32{make([]uint32, 8)}, Computed: 32, External: 96}},
		"begins before":      {o, connector.Alloc{Blocks: [][]uint32{make([]uint32, 8)}, Computed: 16, External: 32}},
		"nothing is offered": {nil, connector.Alloc{Blocks: [][]uint32{{1, 2}}, External: 32}},
	} {
		l := planLoad(tc.o, &tc.a, m)
		if len(l.Stretches) != 1 || l.Stretches[0].Shards != nil {
			t.Errorf("%s: %+v, want blocks without a place", name, l)
		}
	}
}
