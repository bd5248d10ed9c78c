package gpubench

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/gpu/region"
)

// cache is an engine's KV memory of one shape on the device, opened by a copier. Its blocks lie in any order, as an engine's
// do after a while: the first half are loaded, the others saved.
type cache struct {
	*rig
	shape
	// blocks of one direction.
	blocks  int
	tensors []libcuda.DevicePtr
	// place of a record among the engine's blocks, and record at a place.
	place, record []int
	mem           gpu.Memory
	text          text
}

// openCache allocates and exports the memory, and has a copier open it. It must be closed before the rig.
func openCache(r *rig, s shape, totalBytes int64) (*cache, error) {
	c := &cache{rig: r, shape: s, blocks: s.blocks(totalBytes), text: newText(s.blockBytes())}
	c.place = rand.New(rand.NewPCG(1, 2)).Perm(2 * c.blocks)
	c.record = make([]int, len(c.place))
	for b, at := range c.place {
		c.record[at] = b
	}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// tensorBytes is the size of each tensor.
func (c *cache) tensorBytes() int64 { return 2 * int64(c.blocks) * int64(c.runBytes()) }

func (c *cache) open() error {
	d := &region.Description{Format: region.Version, Device: c.uuid.String(), Kind: region.IPC}
	size := (c.tensorBytes() + granuleBytes - 1) / granuleBytes * granuleBytes
	for range c.Tensors {
		at, err := c.ctx.Alloc(size)
		if err != nil {
			return err
		}
		c.tensors = append(c.tensors, at)
		h, err := c.ctx.IPCHandle(at)
		if err != nil {
			return err
		}
		d.Parts = append(d.Parts, region.Part{Bytes: c.tensorBytes(), AllocationBytes: size, Handle: h[:]})
	}
	f, err := region.Seal(d)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	c.mem, err = c.driver.Open([]*os.File{f})
	return err
}

// close has the copier unmap the memory, and frees it: in this order.
func (c *cache) close() error {
	var err error
	if c.mem != nil {
		err = c.mem.Close()
	}
	for _, at := range c.tensors {
		err = errors.Join(err, c.ctx.Free(at))
	}
	c.mem, c.tensors = nil, nil
	return err
}

// slot is where a record lies in the arena.
func (c *cache) slot(record int) []byte {
	half, i := record/c.blocks, record%c.blocks
	at := i * c.slotBytes()
	return c.half(half)[at : at+c.blockBytes() : at+c.blockBytes()]
}

// pieces are those of records from to to, in order.
func (c *cache) pieces(from, to int) []gpu.Piece {
	var out []gpu.Piece
	n := c.runBytes()
	for b := from; b < to; b++ {
		slot := c.slot(b)
		for t := range c.Tensors {
			out = append(out, gpu.Piece{Offset: uint64(int64(t)*c.tensorBytes() + int64(c.place[b])*int64(n)), Host: slot[t*n : (t+1)*n]})
		}
	}
	return out
}

// fill writes what a case begins with: records of loads in the arena, of the number load; all the engine's blocks with
// those of the number save. Where saves will write there is nothing.
func (c *cache) fill(load, save int) error {
	for b := range c.blocks {
		copy(c.slot(b), c.text.record(b, load))
		clear(c.slot(c.blocks + b))
	}
	return c.each(func(t, from, to int) error {
		n := c.runBytes()
		for at := from; at < to; at++ {
			copy(c.staging[(at-from)*n:][:n], c.text.record(c.record[at], save)[t*n:])
		}
		s := c.streams[0]
		return errors.Join(s.CopyToDevice(c.tensors[t]+libcuda.DevicePtr(from*n), c.staging[:(to-from)*n]), s.Synchronize())
	})
}

// verify compares everything with what must be there after the copies of a case, which fill began. Blocks and slots that
// were not copied must be as they were.
func (c *cache) verify(load, save int, loaded, saved bool) error {
	for b := range c.blocks {
		if !bytes.Equal(c.slot(b), c.text.record(b, load)) {
			return c.wrong("the arena's record", b)
		}
		if saved && !bytes.Equal(c.slot(c.blocks+b), c.text.record(c.blocks+b, save)) {
			return c.wrong("the saved record", b)
		}
	}
	return c.each(func(t, from, to int) error {
		n, s := c.runBytes(), c.streams[1]
		if err := errors.Join(s.CopyToHost(c.staging[:(to-from)*n], c.tensors[t]+libcuda.DevicePtr(from*n)), s.Synchronize()); err != nil {
			return err
		}
		for at := from; at < to; at++ {
			b, number := c.record[at], save
			if loaded && b < c.blocks {
				number = load
			}
			if !bytes.Equal(c.staging[(at-from)*n:][:n], c.text.record(b, number)[t*n:][:n]) {
				return c.wrong("the engine's block", at)
			}
		}
		return nil
	})
}

// errWrong means that bytes are not what they must be.
var errWrong = errors.New("WRONG BYTES")

func (c *cache) wrong(what string, i int) error {
	return fmt.Errorf("bench gpu: %w: %s, %d tokens: %s %d", errWrong, c.Name, c.tokens, what, i)
}

// each calls f for stretches of each tensor's blocks that fit the staging memory.
func (c *cache) each(f func(t, from, to int) error) error {
	step := max(1, len(c.staging)/c.runBytes())
	for t := range c.tensors {
		for from := 0; from < 2*c.blocks; from += step {
			if err := f(t, from, min(from+step, 2*c.blocks)); err != nil {
				return err
			}
		}
	}
	return nil
}

// text is what records are made of: each is a stretch of the same random bytes that begins elsewhere.
type text struct {
	b          []byte
	blockBytes int
}

const (
	textStarts = 1 << 16
	textStep   = 16
)

func newText(blockBytes int) text {
	b := make([]byte, blockBytes+textStarts*textStep)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // it has no errors
	return text{b, blockBytes}
}

// record of a number. Records below 65,536 differ, and so do those of other numbers of the same record.
func (t text) record(record, number int) []byte {
	at := (record*31 + number*7919) % textStarts * textStep
	return t.b[at : at+t.blockBytes]
}
