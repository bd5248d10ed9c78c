package feed

import (
	"errors"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/event"
)

func newTestIngest(t testing.TB, x Index) *Ingest {
	t.Helper()
	return NewIngest(blockkey.Tokens, testBlockSize, 1, x)
}

// apply gives an ingest one batch of these events.
func apply(t testing.TB, g *Ingest, events ...[]byte) {
	t.Helper()
	if _, err := g.Batch(eventBatch(events...)); err != nil {
		t.Fatal(err)
	}
}

func wantKeys(t testing.TB, x *memIndex, h Holder, want ...connector.Key) {
	t.Helper()
	got := x.keys(h)
	for _, k := range want {
		if !got[k] {
			t.Errorf("holder %d lacks %v", h, k)
		}
		delete(got, k)
	}
	if len(got) > 0 {
		t.Errorf("holder %d has %d more: %v", h, len(got), got)
	}
}

func TestEventsBecomeOurKeys(t *testing.T) {
	x := newMemIndex()
	g := newTestIngest(t, x)
	keys := keysOf(connector.Scope{}, 1, 2, 3, 4)
	apply(t, g, storedEvent(0, []uint64{1, 2}), storedEvent(2, []uint64{3, 4}))
	wantKeys(t, x, 1, keys...)
	apply(t, g, removedEvent(4, 2))
	wantKeys(t, x, 1, keys[0], keys[2])
	apply(t, g, eventMap("AllBlocksCleared"))
	wantKeys(t, x, 1)
	if s := g.Stats(); s.Batches != 3 || s.Events != 4 || s.Blocks != 6 || s.UnknownRemovals != 0 || s.Malformed != 0 {
		t.Errorf("%+v", s)
	}
}

func TestABlockStoredTwiceIsRemovedTwice(t *testing.T) {
	x := newMemIndex()
	g := newTestIngest(t, x)
	apply(t, g, storedEvent(0, []uint64{1}), storedEvent(0, []uint64{1, 2}), removedEvent(1))
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2)...)
	apply(t, g, removedEvent(1))
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2)[1])
}

func TestScopesHaveTheirOwnKeys(t *testing.T) {
	x := newMemIndex()
	g := newTestIngest(t, x)
	apply(t, g,
		storedEvent(0, []uint64{1, 2}, field("cache_salt", "a")),
		storedEvent(0, []uint64{3}, field("lora_name", "sql"), field("extra_keys", []any{[]any{"sql", "b"}})),
		storedEvent(0, []uint64{4}, field("lora_id", 7)))
	var want []connector.Key
	want = append(want, keysOf(connector.Scope{Salt: "a"}, 1, 2)...)
	want = append(want, keysOf(connector.Scope{Salt: "b", LoRA: "sql"}, 3)...)
	want = append(want, keysOf(connector.Scope{LoRA: "7"}, 4)...)
	wantKeys(t, x, 1, want...)
}

func TestBlocksWithImagesAreNoPromptsOfTokens(t *testing.T) {
	x := newMemIndex()
	g := newTestIngest(t, x)
	plain := keysOf(connector.Scope{}, 1, 2, 3)
	apply(t, g, storedEvent(0, []uint64{1, 2}, field("extra_keys", []any{nil, []any{[]any{"image", 3}}})), storedEvent(2, []uint64{3}))
	got := x.keys(1)
	if len(got) != 3 || !got[plain[0]] || got[plain[1]] || got[plain[2]] {
		t.Errorf("%v", got)
	}
	if s := g.Stats(); s.ExtraKeyed != 1 || s.UnknownParents != 0 {
		t.Errorf("%+v", s)
	}
	apply(t, g, removedEvent(1, 2, 3))
	wantKeys(t, x, 1)
}

func TestWhatIsNoPrefixEntryIsCountedAndIgnored(t *testing.T) {
	x := newMemIndex()
	g := newTestIngest(t, x)
	apply(t, g,
		storedEvent(0, []uint64{1}, field("group_idx", 1), field("kv_cache_spec_kind", "sliding_window")),
		storedEvent(0, []uint64{2}, field("group_idx", 2)),
		storedEvent(0, []uint64{3}, field("medium", "EXTERNAL")),
		eventMap("BlockStored", field("block_hashes", []uint64{4}), field("token_ids", []uint32{}), field("medium", "GPU")),
		eventMap("BlockRemoved", field("block_hashes", []uint64{1}), field("group_idx", 1)),
		eventMap("BlockRemoved", field("block_hashes", []uint64{3}), field("medium", "EXTERNAL")),
		storedEvent(0, []uint64{3}, field("medium", "CPU_PINNED")),
		// What kvconn's connector announces: the node's tiers are known from the daemon.
		storedEvent(0, []uint64{7}, field("medium", "STORAGE"), field("locality", "LOCAL"), field("ownership", "kvconn")),
		eventMap("BlockRemoved", field("block_hashes", []uint64{7}), field("medium", "STORAGE"), field("ownership", "kvconn")),
		eventMap("BlockInactive", field("block_hashes", []uint64{3})),
		storedEvent(9, []uint64{5}),
		removedEvent(6),
	)
	wantKeys(t, x, 1)
	s := g.Stats()
	if s.IgnoredGroups != 3 || s.IgnoredMedia != 5 || s.HashOnly != 1 || s.UnknownTypes != 1 || s.UnknownParents != 1 || s.UnknownRemovals != 1 {
		t.Errorf("%+v", s)
	}
}

// A group that says it is full attention counts, whatever its number, and so do its removals.
func TestGroupsOfFullAttentionCount(t *testing.T) {
	x := newMemIndex()
	g := newTestIngest(t, x)
	removed := func(group int) []byte {
		return eventMap("BlockRemoved", field("block_hashes", []uint64{1}), field("group_idx", group))
	}
	apply(t, g,
		storedEvent(0, []uint64{1}, field("group_idx", 0), field("kv_cache_spec_kind", "mamba")),
		storedEvent(0, []uint64{1}, field("group_idx", 3), field("kv_cache_spec_kind", "mla_attention")), removed(0))
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
	apply(t, g, removed(3))
	wantKeys(t, x, 1)
}

func TestContradictionsAreMalformed(t *testing.T) {
	x := newMemIndex()
	g := newTestIngest(t, x)
	short := eventMap("BlockStored", field("block_hashes", []uint64{1, 2}), field("token_ids", tokensOf(1)), field("block_size", testBlockSize))
	if _, err := g.Batch(eventBatch(short)); !errors.Is(err, event.ErrMalformed) {
		t.Errorf("too few tokens: %v", err)
	}
	other := eventMap("BlockStored", field("block_hashes", []uint64{1}), field("token_ids", make([]uint32, 32)), field("block_size", 32))
	if _, err := g.Batch(eventBatch(other)); !errors.Is(err, ErrBlockSize) {
		t.Errorf("another block size: %v", err)
	}
	if s := g.Stats(); s.Malformed != 1 || s.MismatchedBlockSize != 1 {
		t.Errorf("%+v", s)
	}
	wantKeys(t, x, 1)
}

// discardIndex takes everything and keeps nothing.
type discardIndex struct{ key connector.Key }

func (*discardIndex) Stored(Holder, uint64, bool, []uint64, []connector.Key) error { return nil }
func (x *discardIndex) ParentKey(Holder, uint64) (connector.Key, bool)             { return x.key, true }
func (*discardIndex) Removed(Holder, []uint64) int                                 { return 0 }
func (*discardIndex) Clear(Holder)                                                 {}
func (*discardIndex) Evicted(Holder) bool                                          { return false }

func TestIngestDoesNotAllocate(t *testing.T) {
	g := newTestIngest(t, new(discardIndex))
	b := eventBatch(storedEvent(5, []uint64{1, 2, 3}, field("medium", "GPU"), field("group_idx", 0)), removedEvent(1, 2))
	if n := testing.AllocsPerRun(100, func() {
		if _, err := g.Batch(b); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
