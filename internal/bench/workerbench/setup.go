package workerbench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/bench/slab"
	"github.com/kvconn/kvconn/internal/bench/storebench"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/host"
)

// loadBench holds a store full of blocks and engine memory for them.
type loadBench struct {
	o          LoadOptions
	blockBytes int
	device     *storebench.Device
	store      *disk.Store
	ns         connector.NamespaceDigest
	manifest   *connector.Manifest
	arena      *host.Arena
	// file and memory are the engine's, arenaBytes another view of the arena.
	file       *os.File
	memory     []byte
	arenaBytes []byte
	// blocks are one chain, in slots of random order.
	blocks  []connector.PlanBlock
	numbers map[connector.Key]int
	content []byte
	// unasked is the number of the last record that [loadBench.emptyHostTier] has made.
	unasked uint64
}

const (
	// storeHeadroom is what the store needs beside payloads.
	storeHeadroom = 128 << 20
	deviceBuffers = 64 << 20
	// arenaParts of HostBytes is the size of the arena: loads may pin half of it.
	arenaParts = 2
)

func (b *loadBench) open(ctx context.Context, dir string) (err error) {
	b.o.Progress("finding out how fast the disk is")
	if b.device, err = storebench.NewDevice(dir, b.o.TotalBytes, deviceBuffers); err != nil {
		return err
	}
	size := arenaParts * b.o.HostBytes
	if b.arena, err = host.New(host.Options{Bytes: max(size, 8<<20), PopulateAheadBytes: max(size, 8<<20)}); err != nil {
		return err
	}
	for b.arena.Stats().PopulatedBytes < int64(len(b.arena.Memory())) {
		time.Sleep(time.Millisecond)
	}
	if b.arenaBytes, err = unix.Mmap(int(b.arena.File().Fd()), 0, len(b.arena.Memory()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map the arena: %w", err)
	}
	b.makeBlocks()
	if err := b.makeMemory(); err != nil {
		return err
	}
	o := disk.Options{Dir: storeDir(dir), MaxBytes: 2*b.o.TotalBytes + storeHeadroom, Logger: slog.New(slog.DiscardHandler)}
	if b.store, err = disk.Open(ctx, o); err != nil {
		return err
	}
	b.manifest = &connector.Manifest{
		Engine: "bench/1", Model: "bench", KVDType: "bfloat16", BlockSize: 16,
		Groups:         []connector.Group{{Layers: b.o.Layers, KVHeads: 8, HeadSize: 128, Layout: "bench"}},
		TensorParallel: 1, PipelineParallel: 1,
		KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
	if b.ns, err = b.store.OpenNamespace(b.manifest); err != nil {
		return err
	}
	b.o.Progress("filling the store")
	return b.fill(ctx)
}

func (b *loadBench) makeBlocks() {
	n := int(b.o.TotalBytes / int64(b.blockBytes))
	b.numbers = make(map[connector.Key]int, n)
	for i, slot := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		block := connector.PlanBlock{Slot: uint32(slot)}
		binary.LittleEndian.PutUint64(block.Key[:], uint64(i)*0x9E3779B97F4A7C15+1)
		binary.LittleEndian.PutUint64(block.Proof[:], uint64(i))
		b.blocks = append(b.blocks, block)
		b.numbers[block.Key] = i
	}
	b.content = make([]byte, b.blockBytes)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b.content)
}

// makeMemory makes the engine's memory and faults it in.
func (b *loadBench) makeMemory() error {
	fd, err := unix.MemfdCreate("kvconn-bench-engine", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("engine memory: %w", err)
	}
	b.file = os.NewFile(uintptr(fd), "kvconn-bench-engine")
	size := len(b.blocks) * b.blockBytes
	if err := b.file.Truncate(int64(size)); err != nil {
		return err
	}
	if b.memory, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map engine memory: %w", err)
	}
	_ = unix.Madvise(b.memory, unix.MADV_POPULATE_WRITE)
	return nil
}

// descriptor is a copy of the engine memory's for someone to own.
func (b *loadBench) descriptor() (*os.File, error) {
	fd, err := unix.FcntlInt(b.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), b.file.Name()), nil
}

func (b *loadBench) record(n int) store.Record {
	blk := &b.blocks[n]
	return store.Record{ID: store.RecordID{Namespace: b.ns, Key: blk.Key}, Parent: b.parent(n), Proof: blk.Proof}
}

func (b *loadBench) parent(n int) connector.Key {
	if n == 0 {
		return connector.Key{}
	}
	return b.blocks[n-1].Key
}

// fill stores all blocks.
func (b *loadBench) fill(ctx context.Context) error {
	const buffers = 16
	slab, err := slab.New(buffers, b.blockBytes)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for n := range b.blocks {
		r := b.record(n)
		op := &store.WriteOp{Record: r, Payload: <-slab.C()}
		copy(op.Payload, b.content)
		b.mark(op.Payload, n)
		wg.Add(1)
		accepted, err := b.store.Write([]*store.WriteOp{op}, func(op *store.WriteOp) {
			mu.Lock()
			errs = append(errs, op.Err)
			mu.Unlock()
			slab.Put(op.Payload)
			wg.Done()
		})
		if accepted == 0 {
			slab.Put(op.Payload)
			wg.Done()
			errs = append(errs, err)
			break
		}
	}
	wg.Wait()
	return errors.Join(errors.Join(errs...), b.store.Sync(ctx), slab.Close())
}

// emptyHostTier replaces the blocks in the host tier by records that nobody asks for.
func (b *loadBench) emptyHostTier(ctx context.Context) error {
	account, err := b.arena.Account(host.AccountOptions{Namespace: b.ns})
	if err != nil {
		return err
	}
	defer account.Close()
	var s host.Slot
	for range len(b.arena.Memory()) / b.blockBytes {
		b.unasked++ // never one that is there already, which would make no room
		r := store.Record{ID: store.RecordID{Namespace: b.ns, Shard: unused}}
		binary.LittleEndian.PutUint64(r.ID.Key[:], b.unasked)
		outcome, err := account.Acquire(ctx, &s, r, b.blockBytes, true)
		if err != nil {
			return fmt.Errorf("empty the host tier: %w", err)
		}
		if outcome == host.Fill {
			s.Publish(r)
		}
		s.Release()
	}
	return nil
}

// unused is a shard that no rank of the bench has.
const unused = 1

// mark writes a block's number, which is not 0, into each of its pieces.
func (b *loadBench) mark(block []byte, n int) {
	for at := 0; at < len(block); at += b.o.LayerBytes {
		binary.LittleEndian.PutUint64(block[at:], uint64(n)+1)
	}
}

// eachPiece calls f with the engine memory of a block's layers in order.
func (b *loadBench) eachPiece(l *connector.GroupLayout, slot uint32, f func(piece []byte)) {
	for i := range l.Runs {
		r := &l.Runs[i]
		for layer := range uint64(r.Layers) {
			at := r.Offset + layer*r.LayerStride + uint64(slot)*r.BlockStride
			f(b.memory[at : at+r.Bytes])
		}
	}
}

// poison makes sure that nothing of the last round passes for loaded.
func (b *loadBench) poison(l *connector.GroupLayout) {
	for i := range b.blocks {
		b.eachPiece(l, uint32(i), func(p []byte) { clear(p[:8]) })
	}
}

var errWrongBytes = errors.New("engine memory does not hold what was stored")

// verify compares the blocks in engine memory with what was stored.
func (b *loadBench) verify(l *connector.GroupLayout, blocks []connector.PlanBlock) error {
	want := bytes.Clone(b.content)
	for i := range blocks {
		n := b.numbers[blocks[i].Key]
		b.mark(want, n)
		at, ok := 0, true
		b.eachPiece(l, blocks[i].Slot, func(p []byte) {
			ok = ok && bytes.Equal(p, want[at:at+len(p)])
			at += len(p)
		})
		if !ok {
			return fmt.Errorf("block %d: %w", n, errWrongBytes)
		}
	}
	return nil
}

func (b *loadBench) close() error {
	var errs []error
	if b.store != nil {
		errs = append(errs, b.store.Close())
	}
	if b.arenaBytes != nil {
		errs = append(errs, unix.Munmap(b.arenaBytes))
	}
	if b.arena != nil {
		errs = append(errs, b.arena.Close())
	}
	if b.memory != nil {
		errs = append(errs, unix.Munmap(b.memory))
	}
	if b.file != nil {
		errs = append(errs, b.file.Close())
	}
	if b.device != nil {
		errs = append(errs, b.device.Close())
	}
	return errors.Join(errs...)
}
