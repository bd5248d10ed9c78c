package engine

import (
	"fmt"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/engine/model"
)

// memory is the paged KV cache in a memfd, layer after layer, within a layer block after
// block: the address of (layer, block) is layer*layerStride + block*blockStride.
type memory struct {
	file   *os.File
	bytes  []byte
	kv     model.KV
	layers int
	blocks int
}

func newMemory(c model.Config, blocks, blockSize int) (*memory, error) {
	page := c.PageFloats(blockSize)
	size := 4 * page * blocks * c.Layers
	fd, err := unix.MemfdCreate("kvconn-engine", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create shared memory for the KV cache: %w", err)
	}
	file := os.NewFile(uintptr(fd), "kvconn-engine")
	if err := file.Truncate(int64(size)); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("size KV cache to %d bytes: %w", size, err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("map KV cache of %d bytes: %w", size, err)
	}
	return &memory{
		file: file, bytes: b, layers: c.Layers, blocks: blocks,
		kv: model.KV{
			Data:      unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), size/4),
			BlockSize: blockSize, LayerStride: page * blocks, BlockStride: page,
		},
	}, nil
}

// layout declares the memory to the connector.
func (m *memory) layout() connector.Layout {
	return connector.Layout{Groups: []connector.GroupLayout{{
		Blocks: uint32(m.blocks),
		Runs: []connector.Run{{
			Layers:      uint32(m.layers),
			LayerStride: uint64(4 * m.kv.LayerStride),
			BlockStride: uint64(4 * m.kv.BlockStride),
			Bytes:       uint64(4 * m.kv.BlockStride),
		}},
	}}}
}

// poison fills blocks with NaN.
func (m *memory) poison(blocks []uint32) {
	nan := float32(math.NaN())
	for layer := range m.layers {
		for _, b := range blocks {
			page := m.kv.Data[layer*m.kv.LayerStride+int(b)*m.kv.BlockStride:][:m.kv.BlockStride]
			for i := range page {
				page[i] = nan
			}
		}
	}
}

func (m *memory) close() error {
	m.kv.Data = nil
	if err := unix.Munmap(m.bytes); err != nil {
		return fmt.Errorf("unmap KV cache: %w", err)
	}
	if err := m.file.Close(); err != nil {
		return fmt.Errorf("close KV cache: %w", err)
	}
	return nil
}
