package worker

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store"
)

// minStagingSlots keeps a rank moving whose blocks are larger than the budget.
const minStagingSlots = 4

// memory is one registration: engine memory, how blocks lie in it, and the staging slots
// that fit them.
type memory struct {
	driver     gpu.Driver
	layout     connector.Layout
	regions    []gpu.Region
	blockBytes int

	loadSlots, saveSlots *staging
	// copies is held for reading while a block moves, and for writing to fence.
	copies sync.RWMutex
	closed bool
	// users are loads and saves that hold staging slots.
	users sync.WaitGroup
	// pieces are reused lists of copies, *[]gpu.Piece.
	pieces sync.Pool
}

// newMemory opens the regions and checks that the layout lies inside them.
func newMemory(o *Options, l *connector.Layout, files []*os.File) (_ *memory, err error) {
	m := &memory{driver: o.Driver, layout: *l}
	m.pieces.New = func() any { return new([]gpu.Piece) }
	defer func() {
		if err != nil {
			m.closeRegions()
		}
	}()
	sizes := make([]int64, 0, len(files))
	for i, f := range files {
		r, err := o.Driver.Open(f)
		if err != nil {
			return nil, fmt.Errorf("%w: region %d: %w", connector.ErrBadRequest, i, err)
		}
		m.regions = append(m.regions, r)
		sizes = append(sizes, r.SizeBytes())
	}
	if err := l.Validate(sizes); err != nil {
		return nil, fmt.Errorf("%w: %w", connector.ErrBadRequest, err)
	}
	m.blockBytes = l.BlockBytes()
	slotBytes := store.PayloadBufferSize(m.blockBytes)
	if m.loadSlots, err = newStaging(slotBytes, o.LoadStagingBytes, minStagingSlots); err != nil {
		return nil, err
	}
	if m.saveSlots, err = newStaging(slotBytes, o.SaveStagingBytes, minStagingSlots); err != nil {
		_ = m.loadSlots.release()
		return nil, err
	}
	return m, nil
}

func (m *memory) closeRegions() {
	for _, r := range m.regions {
		_ = r.Close() // nothing can be done about a mapping that does not go away
	}
}

// fence makes sure that engine memory is not touched once it returns, and gives it back.
// Staging memory follows as soon as the store has let go of it.
func (m *memory) fence() {
	m.copies.Lock()
	defer m.copies.Unlock()
	if m.closed {
		return
	}
	m.closed = true
	m.closeRegions()
	go func() {
		m.users.Wait()
		_ = m.loadSlots.release()
		_ = m.saveSlots.release()
	}()
}

// blockPieces lists the copies between block slot and a staging buffer.
func (m *memory) blockPieces(pieces []gpu.Piece, slot uint32, buf []byte) []gpu.Piece {
	at := 0
	for i := range m.layout.Runs {
		r := &m.layout.Runs[i]
		for layer := range uint64(r.Layers) {
			n := int(r.Bytes)
			pieces = append(pieces, gpu.Piece{
				Region: m.regions[r.Region],
				Offset: r.Offset + layer*r.LayerStride + uint64(slot)*r.BlockStride,
				Host:   buf[at : at+n],
			})
			at += n
		}
	}
	return pieces
}

// move copies one block by the driver's CopyIn or CopyOut, unless the memory is fenced.
func (m *memory) move(ctx context.Context, slot uint32, buf []byte, copyPieces func(context.Context, []gpu.Piece) error) error {
	m.copies.RLock()
	defer m.copies.RUnlock()
	if m.closed {
		return errFenced
	}
	pieces := m.pieces.Get().(*[]gpu.Piece)
	*pieces = m.blockPieces((*pieces)[:0], slot, buf)
	err := copyPieces(ctx, *pieces)
	clear(*pieces)
	m.pieces.Put(pieces)
	return err
}

// takeSave takes a slot for a save, or returns nil.
func (m *memory) takeSave() []byte {
	buf := m.saveSlots.tryTake()
	if buf != nil {
		m.users.Add(1)
	}
	return buf
}

// putSave gives a slot of takeSave back.
func (m *memory) putSave(buf []byte) {
	m.saveSlots.put(buf)
	m.users.Done()
}
