package worker

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store"
)

// minStagingSlots keeps a rank moving whose blocks are larger than the budget.
const minStagingSlots = 4

// memory is one registration: engine memory, how blocks lie in it, and the staging slots
// that fit them.
type memory struct {
	driver     gpu.Driver
	layout     connector.GroupLayout
	fencePage  *fence.Page
	regions    []gpu.Region
	blockBytes int

	loadSlots, saveSlots *store.Slab
	// copies is held for reading while a block moves, and for writing to fence.
	copies sync.RWMutex
	closed bool
	// users are loads and saves that hold staging slots.
	users sync.WaitGroup
	// pieces are reused lists of copies, *[]gpu.Piece.
	pieces sync.Pool
}

// newMemory opens the regions and checks that the layout lies inside them.
func newMemory(o *Options, l *connector.Layout, page *fence.Page, files []*os.File) (_ *memory, err error) {
	m := &memory{driver: o.Driver, layout: l.Groups[0], fencePage: page}
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
	m.blockBytes = m.layout.BlockBytes()
	if m.loadSlots, err = newStaging(o.LoadStagingBytes, m.blockBytes); err != nil {
		return nil, err
	}
	if m.saveSlots, err = newStaging(o.SaveStagingBytes, m.blockBytes); err != nil {
		_ = m.loadSlots.Close()
		return nil, err
	}
	return m, nil
}

// newStaging makes as many slots as the budget holds.
func newStaging(budgetBytes int64, blockBytes int) (*store.Slab, error) {
	slots := max(int(budgetBytes/int64(store.PayloadBufferSize(blockBytes))), minStagingSlots)
	s, err := store.NewSlab(slots, blockBytes)
	if err != nil {
		return nil, fmt.Errorf("staging memory: %w", err)
	}
	return s, nil
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
	_ = m.fencePage.Close()
	go func() {
		m.users.Wait()
		// Every slot is back, since every slot that is out is a user.
		_ = m.loadSlots.Close()
		_ = m.saveSlots.Close()
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
	if m.closed || !m.fencePage.Begin() {
		return errFenced
	}
	defer m.fencePage.End()
	pieces := m.pieces.Get().(*[]gpu.Piece)
	*pieces = m.blockPieces((*pieces)[:0], slot, buf)
	err := copyPieces(ctx, *pieces)
	clear(*pieces)
	m.pieces.Put(pieces)
	return err
}

// takeLoad takes a slot for a load. It waits for one until ctx ends if wait is set, and
// returns nil where there is none.
func (m *memory) takeLoad(ctx context.Context, wait bool) []byte {
	select {
	case buf := <-m.loadSlots.C():
		m.users.Add(1)
		return buf
	default:
	}
	if !wait {
		return nil
	}
	select {
	case buf := <-m.loadSlots.C():
		m.users.Add(1)
		return buf
	case <-ctx.Done():
		return nil
	}
}

// putLoad gives a slot of takeLoad back.
func (m *memory) putLoad(buf []byte) {
	m.loadSlots.Put(buf)
	m.users.Done()
}

// takeSave takes a slot for a save, or returns nil.
func (m *memory) takeSave() []byte {
	select {
	case buf := <-m.saveSlots.C():
		m.users.Add(1)
		return buf
	default:
		return nil
	}
}

// putSave gives a slot of takeSave back.
func (m *memory) putSave(buf []byte) {
	m.saveSlots.Put(buf)
	m.users.Done()
}
