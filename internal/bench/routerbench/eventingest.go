package routerbench

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/prefix"
)

// IngestOptions say what [Ingest] measures. The zero value of a field means its default.
type IngestOptions struct {
	// Blocks is how many blocks of 16 tokens are stored in a round, in events of 32. Default
	// 262,144.
	Blocks int
	// PromptBlocks is the length of the prompts that they make up. Default 1,024.
	PromptBlocks int
	// Background is how many other blocks the index has. Default 1 million.
	Background int
	// Rounds is how many times each figure is taken; the best counts. Default 5.
	Rounds int
}

// EnsureDefaults fills in every field that is zero.
func (o *IngestOptions) EnsureDefaults() {
	o.Blocks = cmp.Or(o.Blocks, 1<<18)
	o.PromptBlocks = cmp.Or(o.PromptBlocks, 1024)
	o.Background = cmp.Or(o.Background, 1_000_000)
	o.Rounds = cmp.Or(o.Rounds, 5)
}

// Validate reports the first option that cannot be used.
func (o *IngestOptions) Validate() error {
	if o.Blocks < eventBlocks || o.Blocks > 1<<24 || o.PromptBlocks < eventBlocks || o.PromptBlocks%eventBlocks != 0 ||
		o.Background < 0 || o.Background > 1<<25 || o.Rounds < 1 {
		return fmt.Errorf("ingest benchmark: %d blocks in prompts of %d beside %d, %d rounds: want multiples of %d, at least one round",
			o.Blocks, o.PromptBlocks, o.Background, o.Rounds, eventBlocks)
	}
	return nil
}

// IngestResult is what [Ingest] measured, in blocks per second of processor time, the garbage
// collector's included.
type IngestResult struct {
	// BlocksPerSecond is decoding raw vLLM event frames, hashing their tokens and storing the
	// blocks in the index.
	BlocksPerSecond float64 `json:"ingest_blocks_per_s"`
	// DecodeBlocksPerSecond is the part without an index: decoding and hashing.
	DecodeBlocksPerSecond float64 `json:"ingest_decode_blocks_per_s"`
	// ChurnBlocksPerSecond counts blocks that are stored and, in events of their own, removed
	// again.
	ChurnBlocksPerSecond float64 `json:"ingest_churn_blocks_per_s"`
}

// Ingest measures the way of an engine's events into the index.
func Ingest(ctx context.Context, o IngestOptions) (IngestResult, error) {
	var r IngestResult
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return r, err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	x, err := prefix.New(prefix.Options{})
	if err != nil {
		return r, err
	}
	other, err := newEventIngest(x)
	if err != nil {
		return r, err
	}
	for n := 0; n < o.Background; n += o.PromptBlocks {
		stored, _ := eventFrames(rng, o.PromptBlocks, o.PromptBlocks)
		if err := batches(other, stored); err != nil {
			return r, err
		}
	}
	decode := feed.NewIngest(blockkey.Tokens, eventBlockSize, 0, new(noIndex))
	g, err := newEventIngest(x)
	if err != nil {
		return r, err
	}
	for range o.Rounds {
		stored, removed := eventFrames(rng, o.Blocks, o.PromptBlocks)
		blocks := float64(len(stored) * eventBlocks)
		runtime.GC()
		hashing, err := cpuSeconds(func() error { return batches(decode, stored) })
		if err != nil {
			return r, err
		}
		storing, err := cpuSeconds(func() error { return batches(g, stored) })
		if err != nil {
			return r, err
		}
		removing, err := cpuSeconds(func() error { return batches(g, removed) })
		if err != nil {
			return r, err
		}
		r.DecodeBlocksPerSecond = max(r.DecodeBlocksPerSecond, blocks/hashing)
		r.BlocksPerSecond = max(r.BlocksPerSecond, blocks/storing)
		r.ChurnBlocksPerSecond = max(r.ChurnBlocksPerSecond, blocks/(storing+removing))
		if err := context.Cause(ctx); err != nil {
			return r, err
		}
	}
	if s := g.Stats(); s.Malformed+s.UnknownParents+s.Refused+s.UnknownRemovals+s.MismatchedBlockSize > 0 {
		return r, fmt.Errorf("ingest benchmark: not all events were taken in: %+v", s)
	}
	return r, nil
}

const eventBlockSize = 16

// newEventIngest is the ingest of one more rank.
func newEventIngest(x *prefix.Index) (*feed.Ingest, error) {
	h, err := x.AddHolder("ingest")
	if err != nil {
		return nil, err
	}
	return feed.NewIngest(blockkey.Tokens, eventBlockSize, h, x), nil
}

func batches(g *feed.Ingest, frames [][]byte) error {
	for _, f := range frames {
		if _, err := g.Batch(f); err != nil {
			return err
		}
	}
	return nil
}

// cpuSeconds is the processor time that the process spends on f.
func cpuSeconds(f func() error) (float64, error) {
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		return 0, err
	}
	spent := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	return max(time.Duration(spent).Seconds(), 1e-6), nil
}

// eventFrames are batches of one event each, as vLLM sends them: those that store prompts, and
// those that remove them again, the last blocks first.
func eventFrames(rng *rand.Rand, blocks, promptBlocks int) (stored, removed [][]byte) {
	for n := 0; n < blocks; n += promptBlocks {
		parent := uint64(0)
		from := len(removed)
		for k := 0; k < promptBlocks; k += eventBlocks {
			ids := make([]uint64, eventBlocks)
			for i := range ids {
				ids[i] = rng.Uint64()
			}
			stored = append(stored, storedFrame(rng, parent, k > 0, ids))
			removed = append(removed, removedFrame(ids))
			parent = ids[eventBlocks-1]
		}
		for i, j := from, len(removed)-1; i < j; i, j = i+1, j-1 {
			removed[i], removed[j] = removed[j], removed[i]
		}
	}
	return stored, removed
}

func openFrame(kind string, fields uint32) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendArrayHeader(msgp.AppendFloat64(b, 1757500000.25), 1)
	return msgp.AppendString(msgp.AppendString(msgp.AppendMapHeader(b, fields), "type"), kind)
}

func storedFrame(rng *rand.Rand, parent uint64, hasParent bool, ids []uint64) []byte {
	b := appendIDs(openFrame("BlockStored", 10), ids)
	if b = msgp.AppendString(b, "parent_block_hash"); hasParent {
		b = msgp.AppendUint64(b, parent)
	} else {
		b = msgp.AppendNil(b)
	}
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), uint32(eventBlockSize*len(ids)))
	for range eventBlockSize * len(ids) {
		b = msgp.AppendUint64(b, rng.Uint64N(128_000))
	}
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), eventBlockSize)
	b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
	b = msgp.AppendString(msgp.AppendString(b, "medium"), "GPU")
	b = msgp.AppendNil(msgp.AppendString(b, "lora_name"))
	b = msgp.AppendInt(msgp.AppendString(b, "group_idx"), 0)
	b = msgp.AppendString(msgp.AppendString(b, "kv_cache_spec_kind"), "full_attention")
	return msgp.AppendInt(b, 0)
}

func removedFrame(ids []uint64) []byte {
	b := appendIDs(openFrame("BlockRemoved", 4), ids)
	b = msgp.AppendString(msgp.AppendString(b, "medium"), "GPU")
	b = msgp.AppendInt(msgp.AppendString(b, "group_idx"), 0)
	return msgp.AppendInt(b, 0)
}

func appendIDs(b []byte, ids []uint64) []byte {
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), uint32(len(ids)))
	for _, id := range ids {
		b = msgp.AppendUint64(b, id)
	}
	return b
}
