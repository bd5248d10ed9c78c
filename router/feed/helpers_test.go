package feed

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/prefix"
)

// memIndex is the simplest index: for each holder the blocks' names, keys and copies.
type memIndex struct {
	mu      sync.Mutex
	holders map[Holder]map[uint64]*memBlock
	// keyed says that copies are not counted, as among stores.
	keyed bool
}

type memBlock struct {
	key    connector.Key
	copies int
}

func newMemIndex() *memIndex { return &memIndex{holders: make(map[Holder]map[uint64]*memBlock)} }

func (x *memIndex) Stored(h Holder, parent uint64, hasParent bool, ids []uint64, keys []connector.Key) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	blocks := x.holders[h]
	if hasParent && blocks[parent] == nil {
		return prefix.ErrUnknownParent
	}
	if blocks == nil {
		blocks = make(map[uint64]*memBlock)
		x.holders[h] = blocks
	}
	for i, id := range ids {
		b := blocks[id]
		if b == nil {
			b = &memBlock{key: keys[i]}
			blocks[id] = b
		}
		if b.copies++; x.keyed {
			b.copies = 1
		}
	}
	return nil
}

func (x *memIndex) ParentKey(h Holder, id uint64) (connector.Key, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if b := x.holders[h][id]; b != nil {
		return b.key, true
	}
	return connector.Key{}, false
}

func (x *memIndex) Removed(h Holder, ids []uint64) (unknown int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, id := range ids {
		b := x.holders[h][id]
		if b == nil {
			unknown++
		} else if b.copies--; b.copies == 0 {
			delete(x.holders[h], id)
		}
	}
	return unknown
}

// Evicted says no: it has room for all.
func (x *memIndex) Evicted(Holder) bool { return false }

func (x *memIndex) Clear(h Holder) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.holders, h)
}

// keys are what a holder has.
func (x *memIndex) keys(h Holder) map[connector.Key]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make(map[connector.Key]bool)
	for _, b := range x.holders[h] {
		all[b.key] = true
	}
	return all
}

const testBlockSize = 4

// tokensOf are the tokens of block n of the test prompt.
func tokensOf(n uint64) []uint32 {
	tokens := make([]uint32, testBlockSize)
	for i := range tokens {
		tokens[i] = uint32(n)*100000 + uint32(i)
	}
	return tokens
}

// keysOf are the keys of a prompt of these blocks.
func keysOf(s connector.Scope, blocks ...uint64) (keys []connector.Key) {
	key, scratch := connector.RootKey(testBlockSize, s), []byte(nil)
	for _, n := range blocks {
		key, scratch = connector.NextKey(key, connector.AppendTokens(nil, tokensOf(n)), scratch)
		keys = append(keys, key)
	}
	return keys
}

// eventBatch is a message of these events.
func eventBatch(events ...[]byte) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendArrayHeader(msgp.AppendFloat64(b, 1.5+float64(len(events))), uint32(len(events)))
	for _, e := range events {
		b = append(b, e...)
	}
	return msgp.AppendInt(b, 0)
}

// field is a field of an event.
func field(name string, value any) []byte {
	b, err := msgp.AppendIntf(msgp.AppendString(nil, name), value)
	if err != nil {
		panic(err)
	}
	return b
}

func eventMap(kind string, fields ...[]byte) []byte {
	b := msgp.AppendMapHeader(nil, uint32(len(fields)+1))
	b = append(b, field("type", kind)...)
	for _, f := range fields {
		b = append(b, f...)
	}
	return b
}

// storedEvent says that blocks, named by their numbers, came after parent, 0 for none.
func storedEvent(parent uint64, blocks []uint64, more ...[]byte) []byte {
	var tokens []uint32
	for _, n := range blocks {
		tokens = append(tokens, tokensOf(n)...)
	}
	var before any
	if parent != 0 {
		before = parent
	}
	fields := append([][]byte{
		field("block_hashes", blocks), field("parent_block_hash", before), field("token_ids", tokens),
		field("block_size", testBlockSize),
	}, more...)
	return eventMap("BlockStored", fields...)
}

func removedEvent(blocks ...uint64) []byte {
	return eventMap("BlockRemoved", field("block_hashes", blocks), field("medium", "GPU"))
}

func seqFrame(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// background runs f until the returned function is called, or the test ends.
func background(t testing.TB, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}
