package connector

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// PlanBlock is one block to move: the engine's slot and the record's identity.
type PlanBlock struct {
	// Slot is the engine's block id.
	Slot  uint32
	Key   Key
	Proof Proof
}

// Transfer is a stretch of consecutive blocks of one prompt that are loaded or saved
// together. The parent of each block is the block before it.
type Transfer struct {
	Request string
	// Parent is the key in front of Blocks[0].
	Parent Key
	Blocks []PlanBlock
}

// Plan is what the workers of an engine do in one step. The leader makes it, the engine
// hands its encoded form to every rank, and each rank's worker executes it on its own
// shard. It is complete: a rank may live on another node than the leader.
type Plan struct {
	Namespace NamespaceDigest
	Loads     []Transfer
	Saves     []Transfer
}

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool { return len(p.Loads) == 0 && len(p.Saves) == 0 }

const (
	planVersion    = 1
	planBlockBytes = 4 + KeySize + ProofSize
)

// ErrPlan marks metadata that no leader of this version has made.
var ErrPlan = errors.New("bad metadata")

// Append appends the encoded plan to b: version, namespace digest, then loads and saves
// as counted lists; numbers are uvarints, slots little-endian u32.
func (p *Plan) Append(b []byte) []byte {
	b = append(b, planVersion)
	b = append(b, p.Namespace[:]...)
	b = appendTransfers(b, p.Loads)
	return appendTransfers(b, p.Saves)
}

func appendTransfers(b []byte, transfers []Transfer) []byte {
	b = binary.AppendUvarint(b, uint64(len(transfers)))
	for i := range transfers {
		t := &transfers[i]
		b = binary.AppendUvarint(b, uint64(len(t.Request)))
		b = append(b, t.Request...)
		b = append(b, t.Parent[:]...)
		b = binary.AppendUvarint(b, uint64(len(t.Blocks)))
		for j := range t.Blocks {
			blk := &t.Blocks[j]
			b = binary.LittleEndian.AppendUint32(b, blk.Slot)
			b = append(b, blk.Key[:]...)
			b = append(b, blk.Proof[:]...)
		}
	}
	return b
}

// ParsePlan decodes metadata. Errors wrap [ErrPlan].
func ParsePlan(b []byte) (*Plan, error) {
	r := planReader{b: b}
	if v := r.take(1); r.err == nil && v[0] != planVersion {
		return nil, fmt.Errorf("%w: version %d, want %d", ErrPlan, v[0], planVersion)
	}
	p := new(Plan)
	copy(p.Namespace[:], r.take(len(p.Namespace)))
	p.Loads = r.transfers()
	p.Saves = r.transfers()
	if r.err == nil && len(r.b) != 0 {
		r.err = fmt.Errorf("%w: %d bytes left over", ErrPlan, len(r.b))
	}
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

type planReader struct {
	b   []byte
	err error
}

// take returns the next n bytes, or zeros once a read has failed.
func (r *planReader) take(n int) []byte {
	if r.err == nil && len(r.b) < n {
		r.err = fmt.Errorf("%w: ends %d bytes early", ErrPlan, n-len(r.b))
	}
	if r.err != nil {
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

// count reads a number of things that take at least size bytes each, so that nothing
// larger than the input is ever allocated.
func (r *planReader) count(size int) int {
	if r.err != nil {
		return 0
	}
	n, w := binary.Uvarint(r.b)
	if w <= 0 || n > uint64(len(r.b)-w)/uint64(size) {
		r.err = fmt.Errorf("%w: count beyond its end", ErrPlan)
		return 0
	}
	r.b = r.b[w:]
	return int(n)
}

func (r *planReader) transfers() []Transfer {
	n := r.count(2 + KeySize)
	if n == 0 {
		return nil
	}
	out := make([]Transfer, n)
	for i := range out {
		t := &out[i]
		t.Request = string(r.take(r.count(1)))
		copy(t.Parent[:], r.take(KeySize))
		t.Blocks = make([]PlanBlock, r.count(planBlockBytes))
		for j := range t.Blocks {
			v := r.take(planBlockBytes)
			if v == nil {
				return nil
			}
			blk := &t.Blocks[j]
			blk.Slot = binary.LittleEndian.Uint32(v)
			copy(blk.Key[:], v[4:])
			copy(blk.Proof[:], v[4+KeySize:])
		}
	}
	return out
}
