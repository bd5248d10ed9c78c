package engine

import (
	"fmt"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/internal/engine/model"
)

// memory is one rank's paged KV cache, mapped from a memfd.
type memory struct {
	shard  shard
	file   *os.File
	bytes  []byte
	floats []float32
}

// newMemory makes the memory of a rank.
func newMemory(s shard) (*memory, error) {
	fd, err := unix.MemfdCreate("kvconn-engine", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create shared memory for the KV cache: %w", err)
	}
	file := os.NewFile(uintptr(fd), "kvconn-engine")
	if err := file.Truncate(s.memoryBytes()); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("size KV cache to %d bytes: %w", s.memoryBytes(), err)
	}
	return openMemory(s, file)
}

// newMemory makes the memory of a rank in this process.
func (o *Options) newMemory(s shard) (*memory, error) {
	if o.NewMemory == nil {
		return newMemory(s)
	}
	file, err := o.NewMemory(s.memoryBytes())
	if err != nil {
		return nil, fmt.Errorf("memory for the KV cache: %w", err)
	}
	return openMemory(s, file)
}

func (s *shard) memoryBytes() int64 { return 4 * int64(s.slotLayers()) * int64(s.layerStride()) }

// openMemory maps the memory that another process made. It takes over the file.
func openMemory(s shard, file *os.File) (*memory, error) {
	size := int(s.memoryBytes())
	b, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("map KV cache of %d bytes: %w", size, err)
	}
	return &memory{shard: s, file: file, bytes: b, floats: unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), size/4)}, nil
}

// page is what a layer of any group keeps of a block.
func (m *memory) page(layer int, block uint32) []float32 {
	return m.floats[layer*m.shard.layerStride()+int(block)*m.shard.blockStride():][:m.shard.blockStride()]
}

// poison fills blocks with NaN.
func (m *memory) poison(blocks []uint32) {
	nan := float32(math.NaN())
	for layer := range m.shard.slotLayers() {
		for _, b := range blocks {
			page := m.page(layer, b)
			for i := range page {
				page[i] = nan
			}
		}
	}
}

// copy copies a block.
func (m *memory) copy(dst, src uint32) {
	for layer := range m.shard.slotLayers() {
		copy(m.page(layer, dst), m.page(layer, src))
	}
}

func (m *memory) close() error {
	m.floats = nil
	if err := unix.Munmap(m.bytes); err != nil {
		return fmt.Errorf("unmap KV cache: %w", err)
	}
	if err := m.file.Close(); err != nil {
		return fmt.Errorf("close KV cache: %w", err)
	}
	return nil
}

// assemble is the KV cache as the model sees it: each layer's heads, wherever the memory
// of their rank is. ranks are in the order of [connector.Manifest.Ranks].
func assemble(ranks []*memory) model.KV {
	first := &ranks[0].shard
	kv := model.KV{BlockSize: first.BlockSize, Planes: make([][]model.Plane, first.Model.Layers)}
	if first.replicated() {
		kv.Copies = first.TensorParallel
	}
	plane := first.Model.PlaneFloats(first.BlockSize)
	for _, m := range ranks {
		s := &m.shard
		for _, g := range s.Model.Groups() {
			for i, layer := range s.layers(&g) {
				for h := range s.heads() {
					kv.Planes[layer] = append(kv.Planes[layer], model.Plane{
						Data: m.floats[i*s.layerStride()+h*plane:], BlockStride: s.blockStride(),
					})
				}
			}
		}
	}
	return kv
}
