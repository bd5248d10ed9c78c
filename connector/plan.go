package connector

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// PlanBlock is one block to move: the engine's slot and the record's identity.
type PlanBlock struct {
	// Slot is the engine's block id.
	Slot  uint32
	Key   Key
	Proof Proof
}

// Transfer is a run of consecutive blocks of one prompt and layer group that are loaded or
// saved together. The parent of each block is the block before it.
type Transfer struct {
	// Group is the layer group's index in the manifest.
	Group int
	// Parent is the key of the block before Blocks[0].
	Parent Key
	// Scope is the digest of the prompt's scope, to be kept with what is saved.
	Scope  ScopeDigest
	Blocks []PlanBlock
}

// RequestLoad is what is loaded for one request; it ends when all its transfers have.
type RequestLoad struct {
	Request string
	// Lost are slots that the engine waits for and that nothing is loaded into: every rank
	// reports them as failed.
	Lost      []uint32
	Transfers []Transfer
}

// Lose gives the load up: it fails as a whole.
func (l *RequestLoad) Lose() {
	l.Lost, l.Transfers = l.Planned().Blocks, nil
}

// Planned is the form of the load that the engine's side can read.
func (l *RequestLoad) Planned() PlannedLoad {
	p := PlannedLoad{Request: l.Request, Blocks: slices.Clone(l.Lost)}
	for i := range l.Transfers {
		for j := range l.Transfers[i].Blocks {
			p.Blocks = append(p.Blocks, l.Transfers[i].Blocks[j].Slot)
		}
	}
	return p
}

// Plan is what the workers of an engine do in one step. The leader makes it, the engine
// hands its encoded form to every rank, and each rank's worker executes it on its own
// shards. It is complete: a rank may live on another node than the leader. In handoff mode
// it holds saves alone.
type Plan struct {
	Namespace NamespaceDigest
	Loads     []RequestLoad
	Saves     []Transfer
}

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool { return len(p.Loads) == 0 && len(p.Saves) == 0 }

// Sizes of the parts of a plan, for a leader that has to bound one. Counts take up to 5 bytes.
const (
	// PlanBlockBytes is the size of a block.
	PlanBlockBytes = 4 + KeySize + ProofSize
	// MaxTransferBytes bounds what a transfer takes beside its blocks.
	MaxTransferBytes = minTransferBytes - 2 + 2*5
	// MaxLoadBytes bounds what a load takes beside its id, transfers and lost slots.
	MaxLoadBytes = 3 * 5
)

const (
	planVersion = 3
	// minTransferBytes is the size of a transfer without blocks.
	minTransferBytes = 1 + KeySize + len(ScopeDigest{}) + 1 + 1
	// maxTransfers bounds the transfers of one list: a few for each request.
	maxTransfers = 16 * MaxStepRequests
)

// ErrPlan marks metadata that no leader of this version makes.
var ErrPlan = errors.New("bad metadata")

// Append appends the encoded plan to b: version, namespace digest, then loads and saves
// as counted lists; counts and groups are uvarints, other numbers little-endian.
func (p *Plan) Append(b []byte) []byte {
	b = append(b, planVersion)
	b = append(b, p.Namespace[:]...)
	b = binary.AppendUvarint(b, uint64(len(p.Loads)))
	for i := range p.Loads {
		l := &p.Loads[i]
		b = binary.AppendUvarint(b, uint64(len(l.Request)))
		b = append(b, l.Request...)
		b = binary.AppendUvarint(b, uint64(len(l.Lost)))
		b = AppendTokens(b, l.Lost)
		b = appendTransfers(b, l.Transfers)
	}
	return appendTransfers(b, p.Saves)
}

func appendTransfers(b []byte, transfers []Transfer) []byte {
	b = binary.AppendUvarint(b, uint64(len(transfers)))
	for i := range transfers {
		t := &transfers[i]
		b = append(b, byte(t.Group))
		b = append(b, t.Parent[:]...)
		b = append(b, t.Scope[:]...)
		b = binary.AppendUvarint(b, uint64(len(t.Blocks)))
		for j := range t.Blocks {
			blk := &t.Blocks[j]
			b = binary.LittleEndian.AppendUint32(b, blk.Slot)
			b = append(b, blk.Key[:]...)
			b = append(b, blk.Proof[:]...)
		}
		b = append(b, 0) // blocks that the engine copies itself: see planReader.skipHandoff
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
	if n := r.count(3); n > 0 {
		r.check(n <= MaxStepRequests, "loads", n)
		if r.err != nil {
			return nil, r.err
		}
		p.Loads = make([]RequestLoad, n)
	}
	for i := range p.Loads {
		id := r.take(r.count(1))
		r.check(len(id) <= MaxIDBytes, "bytes of a request id", len(id))
		p.Loads[i].Request = string(id)
		p.Loads[i].Lost = r.slots()
		p.Loads[i].Transfers = r.transfers()
		if r.err != nil {
			return nil, r.err
		}
	}
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

// take returns the next n bytes, or nil once a read has failed.
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

// check refuses what is out of bounds, though it may fit the input: an entry takes more
// memory than its encoded form.
func (r *planReader) check(ok bool, what string, n int) {
	if r.err == nil && !ok {
		r.err = fmt.Errorf("%w: %d %s", ErrPlan, n, what)
	}
}

func (r *planReader) slots() []uint32 {
	v := r.take(4 * r.count(4))
	if len(v) == 0 {
		return nil
	}
	out := make([]uint32, len(v)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(v[4*i:])
	}
	return out
}

func (r *planReader) transfers() []Transfer {
	n := r.count(minTransferBytes)
	r.check(n <= maxTransfers, "transfers", n)
	if n == 0 || r.err != nil {
		return nil
	}
	out := make([]Transfer, n)
	for i := range out {
		r.transfer(&out[i])
		if r.err != nil {
			return nil
		}
	}
	return out
}

func (r *planReader) transfer(t *Transfer) {
	if v := r.take(1); v != nil {
		if t.Group = int(v[0]); t.Group >= MaxGroups {
			r.err = fmt.Errorf("%w: group %d", ErrPlan, t.Group)
		}
	}
	copy(t.Parent[:], r.take(KeySize))
	copy(t.Scope[:], r.take(len(t.Scope)))
	t.Blocks = make([]PlanBlock, r.count(PlanBlockBytes))
	for j := range t.Blocks {
		v := r.take(PlanBlockBytes)
		if v == nil {
			return
		}
		blk := &t.Blocks[j]
		blk.Slot = binary.LittleEndian.Uint32(v)
		copy(blk.Key[:], v[4:])
		copy(blk.Proof[:], v[4+KeySize:])
	}
	r.skipHandoff(len(t.Blocks))
}

// skipHandoff passes over the shards that a client in handoff mode may have put in for its
// own workers: shard number, then offset and sum of each of the transfer's blocks.
func (r *planReader) skipHandoff(blocks int) {
	size := 2 + HandoffBlockBytes*blocks
	n := r.count(size)
	r.check(n <= MaxShards && (n == 0 || blocks > 0), "shards", n)
	r.take(n * size)
}

// HandoffOffer says where the verified bytes of an offer lie in the daemon's host tier, for
// engines that copy them themselves (handoff mode): once they have it they need no daemon.
type HandoffOffer struct {
	// First is the first offered block, an index of the block table.
	First int
	// Shards list the blocks from First on: the same number for each shard that the ranks need.
	Shards []HandoffShard
}

// HandoffShard lists where the blocks lie for the ranks that keep one shard.
type HandoffShard struct {
	Shard  Shard
	Blocks []HandoffBlock
}

// HandoffBlock is where the verified bytes of one block lie.
type HandoffBlock struct {
	// Offset is in the descriptor that came with the answer to register.
	Offset uint64
	// Sum is the XXH3-64 of the bytes. The engine checks its copy against it.
	Sum uint64
}

// Sizes of the parts of an encoded offer.
const (
	// HandoffShardBytes is what a shard takes beside its blocks.
	HandoffShardBytes = 2 + 4
	// HandoffBlockBytes is the size of a block.
	HandoffBlockBytes = 8 + 8
)

// Append appends the encoded offer to b: First as u32, then for each shard its number as
// u16, the number of blocks as u32, and offset and sum of each as u64, all little-endian.
func (o *HandoffOffer) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(o.First))
	for i := range o.Shards {
		s := &o.Shards[i]
		b = binary.LittleEndian.AppendUint16(b, uint16(s.Shard))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s.Blocks)))
		for _, blk := range s.Blocks {
			b = binary.LittleEndian.AppendUint64(b, blk.Offset)
			b = binary.LittleEndian.AppendUint64(b, blk.Sum)
		}
	}
	return b
}

// ParseHandoffOffer is the inverse of [HandoffOffer.Append]. Errors wrap [ErrPlan].
func ParseHandoffOffer(b []byte) (*HandoffOffer, error) {
	if len(b) < 4 {
		return nil, fmt.Errorf("%w: handoff offer of %d bytes", ErrPlan, len(b))
	}
	o := &HandoffOffer{First: int(binary.LittleEndian.Uint32(b))}
	if o.First > MaxTokens {
		return nil, fmt.Errorf("%w: handoff offer from block %d on", ErrPlan, o.First)
	}
	for b = b[4:]; len(b) > 0; {
		if len(b) < HandoffShardBytes || len(o.Shards) == MaxShards {
			return nil, fmt.Errorf("%w: handoff offer ends early or has too many shards", ErrPlan)
		}
		n := uint64(binary.LittleEndian.Uint32(b[2:]))
		if n*HandoffBlockBytes > uint64(len(b)-HandoffShardBytes) {
			return nil, fmt.Errorf("%w: handoff offer of %d blocks in %d bytes", ErrPlan, n, len(b))
		}
		s := HandoffShard{Shard: Shard(binary.LittleEndian.Uint16(b)), Blocks: make([]HandoffBlock, n)}
		b = b[HandoffShardBytes:]
		for i := range s.Blocks {
			s.Blocks[i] = HandoffBlock{Offset: binary.LittleEndian.Uint64(b), Sum: binary.LittleEndian.Uint64(b[8:])}
			b = b[HandoffBlockBytes:]
		}
		o.Shards = append(o.Shards, s)
	}
	return o, nil
}
