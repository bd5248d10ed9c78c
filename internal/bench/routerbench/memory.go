package routerbench

import (
	"context"
	"runtime"

	"github.com/kvconn/kvconn/router/prefix"
)

// measureMemory takes the heap per block, of as many blocks as the background has.
func measureMemory(ctx context.Context, o Options, r *IndexResult) error {
	for _, m := range []struct {
		ranks, blocks int
		bytes         *float64
	}{
		{1, o.Background, &r.BytesPerBlock1Rank},
		{o.Ranks, min(o.Background, 250_000), &r.BytesPerBlock64Ranks},
	} {
		before := heapBytes()
		f, err := newFleet(m.ranks, prefix.MaxBlocksLimit)
		if err != nil {
			return err
		}
		const length = 1000
		for left := m.blocks; left > 0; left -= length {
			c := newChain(f.rng, chain{}, 0, min(length, left))
			for _, h := range f.holders {
				if err := store(f.index, h, c, 0); err != nil {
					return err
				}
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		*m.bytes = float64(heapBytes()-before) / float64(m.blocks)
		runtime.KeepAlive(f)
	}
	return nil
}

// heapBytes is the memory of live objects.
func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
