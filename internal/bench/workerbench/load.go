// Package workerbench measures how fast blocks come back into registered engine memory,
// from disk and from the host tier, against what the device and the memory can do.
package workerbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/bench/storebench"
	"github.com/kvconn/kvconn/store"
)

// LoadOptions say what [Load] measures.
type LoadOptions struct {
	// Dir is where the temporary files are made and removed again.
	Dir string
	// LayerBytes is a block's piece in each of Layers layers. Default 64 KiB and 32: a
	// block of 2 MiB.
	LayerBytes int
	Layers     int
	// TotalBytes are loaded from disk in each round, HostBytes of them from the host tier.
	// Default 1 GiB and 256 MiB: far more than processor caches.
	TotalBytes int64
	HostBytes  int64
	// Copiers is how many goroutines make the plain copies that host-tier hits are compared
	// with. Default GOMAXPROCS, at most 4: as many as the host driver uses.
	Copiers int
	// Rounds of everything alternate; medians count. Default 5.
	Rounds int
	// Progress, if not nil, is called with what is measured next.
	Progress func(step string)
}

// EnsureDefaults fills in what is not set.
func (o *LoadOptions) EnsureDefaults() {
	o.LayerBytes = cmp.Or(o.LayerBytes, 64<<10)
	o.Layers = cmp.Or(o.Layers, 32)
	o.TotalBytes = cmp.Or(o.TotalBytes, 1<<30)
	o.HostBytes = cmp.Or(o.HostBytes, min(256<<20, o.TotalBytes/2))
	o.Copiers = cmp.Or(o.Copiers, min(4, runtime.GOMAXPROCS(0)))
	o.Rounds = cmp.Or(o.Rounds, 5)
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
}

// Validate reports the first option that cannot work.
func (o *LoadOptions) Validate() error {
	if o.LayerBytes < 8 || o.Layers < 1 || o.LayerBytes > store.MaxPayloadBytes/o.Layers {
		return fmt.Errorf("bench load: %d layers of %d bytes", o.Layers, o.LayerBytes)
	}
	const least = 8
	if block := int64(o.LayerBytes * o.Layers); o.TotalBytes < least*block || o.HostBytes < block || 2*o.HostBytes > o.TotalBytes {
		return fmt.Errorf("bench load: %d bytes in all, %d of them in the host tier: at least %d blocks, at most half in the host tier",
			o.TotalBytes, o.HostBytes, least)
	}
	if o.Copiers < 1 || o.Rounds < 1 {
		return errors.New("bench load: no copiers or no rounds")
	}
	return nil
}

// Figures of one layout. Rates are medians of the rounds, ratios medians of each round's.
type Figures struct {
	// RawReadBytesPerS is what the device reads in the same rounds, LoadBytesPerS what the
	// worker loads from disk into engine memory; DiskRatio is their quotient.
	RawReadBytesPerS float64 `json:"raw_read_bytes_per_s"`
	LoadBytesPerS    float64 `json:"load_bytes_per_s"`
	DiskRatio        float64 `json:"disk_ratio"`
	LoadCPUSPerGiB   float64 `json:"load_cpu_s_per_gib"`
	// MemcpyBytesPerS is what plain copies between the same memories reach on Copiers
	// goroutines, HostBytesPerS what the worker reaches with host-tier hits.
	MemcpyBytesPerS float64 `json:"memcpy_bytes_per_s"`
	// PieceMemcpyBytesPerS is the same into the pieces of the layout, block by block: what
	// is lost to the layout and not to the worker.
	PieceMemcpyBytesPerS float64 `json:"piece_memcpy_bytes_per_s"`
	HostBytesPerS        float64 `json:"host_bytes_per_s"`
	// HostRatio is against PieceMemcpyBytesPerS: a memcpy of the same bytes from and to the
	// same places. HostPlainRatio is against MemcpyBytesPerS.
	HostRatio      float64 `json:"host_ratio"`
	HostPlainRatio float64 `json:"host_plain_ratio"`
	HostCPUSPerGiB float64 `json:"host_cpu_s_per_gib"`
}

// LoadResult is what [Load] measured.
type LoadResult struct {
	BlockBytes int    `json:"block_bytes"`
	TotalBytes int64  `json:"total_bytes"`
	RawShape   string `json:"raw_read_shape"`
	Copiers    int    `json:"copiers"`
	HugeBytes  int64  `json:"host_huge_bytes"`
	// Figures are of blocks whose layers lie apart.
	Figures
	// Contiguous are of blocks in one piece.
	Contiguous Figures `json:"contiguous"`
}

// Load measures loads from disk and from the host tier into shared engine memory, in
// rounds that alternate with raw reads and plain copies. All that is loaded is compared
// with what was stored.
func Load(ctx context.Context, o LoadOptions) (res LoadResult, err error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return res, err
	}
	dir, err := os.MkdirTemp(o.Dir, "kvconn-bench-load-")
	if err != nil {
		return res, fmt.Errorf("make a directory for temporary files: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &loadBench{o: o, blockBytes: o.LayerBytes * o.Layers}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(ctx, dir); err != nil {
		return res, err
	}
	res = LoadResult{BlockBytes: b.blockBytes, TotalBytes: o.TotalBytes, RawShape: b.device.Shape(), Copiers: o.Copiers,
		HugeBytes: b.arena.Stats().HugeBytes}
	if res.Figures, err = b.measure(ctx, "layers apart", b.layered()); err != nil {
		return res, err
	}
	res.Contiguous, err = b.measure(ctx, "contiguous", b.contiguous())
	return res, err
}

func (b *loadBench) layered() connector.GroupLayout {
	n := uint64(b.o.LayerBytes)
	return connector.GroupLayout{Blocks: uint32(len(b.blocks)), Runs: []connector.Run{{
		Layers: uint32(b.o.Layers), LayerStride: n * uint64(len(b.blocks)), BlockStride: n, Bytes: n,
	}}}
}

func (b *loadBench) contiguous() connector.GroupLayout {
	n := uint64(b.blockBytes)
	return connector.GroupLayout{Blocks: uint32(len(b.blocks)), Runs: []connector.Run{{Layers: 1, BlockStride: n, Bytes: n}}}
}

// measure alternates the measurements of one layout.
func (b *loadBench) measure(ctx context.Context, name string, l connector.GroupLayout) (f Figures, err error) {
	w, err := newWorkerLoader(b, &l)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	var raws, loads, diskRatios, loadCPU, copies, pieceCopies, hosts, hostRatios, pieceRatios, hostCPU []float64
	for round := range b.o.Rounds + 1 {
		b.o.Progress(fmt.Sprintf("%s, round %d of %d", name, round, b.o.Rounds))
		raw, err := b.device.Read()
		if err != nil {
			return f, err
		}
		if err := b.emptyHostTier(ctx); err != nil {
			return f, err
		}
		load, lc, err := b.timed(ctx, &l, b.blocks, w.load)
		if err != nil {
			return f, fmt.Errorf("bench load, %s, worker: %w", name, err)
		}
		hot := b.hostBlocks()
		if err := w.load(ctx, hot); err != nil { // makes them resident
			return f, err
		}
		memcpy, pieces := b.memcpy(), b.pieceMemcpy(&l)
		before := b.arena.Stats().Hits
		host, hc, err := b.timed(ctx, &l, hot, w.load)
		if err != nil {
			return f, fmt.Errorf("bench load, %s, host tier: %w", name, err)
		}
		if hits := b.arena.Stats().Hits - before; hits != uint64(len(hot)) {
			return f, fmt.Errorf("bench load, %s: %d of %d blocks are in the host tier: %w", name, hits, len(hot), errNotResident)
		}
		if round == 0 {
			continue // faults pages in
		}
		raws, loads, diskRatios, loadCPU = append(raws, raw), append(loads, load), append(diskRatios, load/raw), append(loadCPU, lc)
		copies, pieceCopies, hosts = append(copies, memcpy), append(pieceCopies, pieces), append(hosts, host)
		hostRatios, pieceRatios, hostCPU = append(hostRatios, host/memcpy), append(pieceRatios, host/pieces), append(hostCPU, hc)
	}
	m := storebench.Median
	return Figures{
		RawReadBytesPerS: m(raws), LoadBytesPerS: m(loads), DiskRatio: m(diskRatios), LoadCPUSPerGiB: m(loadCPU),
		MemcpyBytesPerS: m(copies), PieceMemcpyBytesPerS: m(pieceCopies),
		HostBytesPerS: m(hosts), HostRatio: m(pieceRatios), HostPlainRatio: m(hostRatios), HostCPUSPerGiB: m(hostCPU),
	}, nil
}

// timed runs load on blocks and verifies engine memory after it.
func (b *loadBench) timed(ctx context.Context, l *connector.GroupLayout, blocks []connector.PlanBlock,
	load func(context.Context, []connector.PlanBlock) error) (bytesPerS, cpu float64, err error) {
	b.poison(l)
	m := storebench.StartMeter()
	err = load(ctx, blocks)
	bytesPerS, cpu = m.Stop(int64(len(blocks)) * int64(b.blockBytes))
	if err == nil {
		err = b.verify(l, blocks)
	}
	return bytesPerS, cpu, err
}

// memcpy copies the host tier's memory to engine memory plainly.
func (b *loadBench) memcpy() float64 {
	n := len(b.hostBlocks()) * b.blockBytes
	return storebench.Memcpy(b.memory[:n], b.arenaBytes[:n], b.blockBytes, b.o.Copiers)
}

// pieceMemcpy copies the host tier's memory to where a load of the hot blocks goes.
func (b *loadBench) pieceMemcpy(l *connector.GroupLayout) float64 {
	hot := b.hostBlocks()
	m := storebench.StartMeter()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range b.o.Copiers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(hot); i = int(next.Add(1)) - 1 {
				from := b.arenaBytes[i*b.blockBytes : (i+1)*b.blockBytes]
				b.eachPiece(l, hot[i].Slot, func(p []byte) { from = from[copy(p, from):] })
			}
		})
	}
	wg.Wait()
	rate, _ := m.Stop(int64(len(hot)) * int64(b.blockBytes))
	return rate
}

func (b *loadBench) hostBlocks() []connector.PlanBlock {
	return b.blocks[:int(b.o.HostBytes)/b.blockBytes]
}

var errNotResident = errors.New("blocks were evicted before their round")

func storeDir(dir string) string { return filepath.Join(dir, "store") }
