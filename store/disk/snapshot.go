package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
)

// A snapshot is the index's memory as it is: a head that says which store, which opening
// and which program wrote it and where each block lies, and then the blocks, each with a
// checksum, aligned for direct I/O. It is read in parallel straight into the memory of
// the new index. The integers of the blocks are in the byte order of the machine, which
// the head tells.

const (
	snapshotMagic   = "KVCNSNP1"
	snapshotVersion = 2
	byteOrderMark   = 0x0102030405060708
	// snapshotReaders is how many goroutines load blocks: enough to keep the disk and two
	// cores busy.
	snapshotReaders = 4
	// maxHeadBytes bounds a head before it is read: 24 bytes for each segment and block, 8
	// for each spare range.
	maxHeadBytes = 64 << 20
)

// snapshotHead is the fixed part of a snapshot's head.
type snapshotHead struct {
	ByteOrder  uint64
	Version    uint32
	EntryBytes uint32
	Buckets    uint32 // of the hash table
	Wrapped    uint32 // of these, the first ones that may hold what belongs at the end
	Segments   uint32
	Spare      uint32
	Blocks     uint32
	Limit      uint32
	Store      format.StoreID
	Opens      uint64
	Seq        uint64
	Clock      uint64
	Count      uint64
	Bytes      uint64
}

type snapshotSegment struct {
	ID, Slots uint32
	SlotBytes int64
	Base      uint32
	_         uint32
}

type snapshotRange struct{ Base, Slots uint32 }

type snapshotBlock struct {
	Offset int64
	Bytes  int64
	Sum    uint64
}

func (s *Store) snapshotPath() string { return filepath.Join(s.opts.Dir, snapshotFile) }

// blocksOf returns the blocks of an image in their order: entries, then the hash table.
func blocksOf(im *index.Image) [][]byte { return slices.Concat(im.Entries, im.Hash) }

// saveSnapshot writes the index. The store has stopped.
func (s *Store) saveSnapshot() error {
	im, segments := s.table.Image(), s.space.allSegments()
	blocks := blocksOf(&im)
	head := snapshotHead{
		ByteOrder: byteOrderMark, Version: snapshotVersion, EntryBytes: index.EntryBytes,
		Buckets: uint32(im.Buckets), Wrapped: uint32(im.Wrapped), Segments: uint32(len(segments)), Spare: uint32(len(im.Spare)),
		Blocks: uint32(len(blocks)), Store: s.id, Opens: s.opens, Seq: s.seq.Load(),
		Limit: uint32(im.Limit), Clock: im.Clock, Count: uint64(im.Count), Bytes: uint64(im.Bytes),
	}
	w := snapshotWriter{}
	w.add(&head)
	for _, g := range segments {
		w.add(&snapshotSegment{ID: g.ID, Slots: g.Slots, SlotBytes: g.SlotBytes, Base: uint32(g.base)})
	}
	for _, r := range im.Spare {
		w.add(&snapshotRange{uint32(r.Base), r.Slots})
	}
	headBytes := len(w.buf) + len(blocks)*binary.Size(snapshotBlock{})
	offset := int64(fsio.AlignUp(headBytes + snapshotPrefixBytes))
	for _, b := range blocks {
		w.add(&snapshotBlock{Offset: offset, Bytes: int64(len(b)), Sum: xxh3.Hash(b)})
		offset += int64(fsio.AlignUp(len(b)))
	}
	if !s.space.snapshotFits(offset) {
		return fmt.Errorf("save snapshot of %d bytes: it would pass the cap or take space that must stay free", offset)
	}
	if err := s.writeSnapshot(w.buf, blocks); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	return nil
}

// snapshotPrefixBytes is in front of the head: magic, the head's length and its checksum.
const snapshotPrefixBytes = 24

func (s *Store) writeSnapshot(head []byte, blocks [][]byte) (err error) {
	tmp := s.snapshotPath() + ".tmp"
	_ = s.opts.fs.Remove(tmp)
	f, err := s.opts.fs.OpenFile(tmp, true, s.direct)
	if err != nil {
		return err
	}
	first := store.AlignedBuffer(fsio.AlignUp(len(head) + snapshotPrefixBytes))
	copy(first, snapshotMagic)
	binary.LittleEndian.PutUint64(first[8:], uint64(len(head)))
	binary.LittleEndian.PutUint64(first[16:], xxh3.Hash(head))
	copy(first[snapshotPrefixBytes:], head)
	err = f.WriteVec(first, nil, 0)
	offset := int64(len(first))
	for i := 0; err == nil && i < len(blocks); i++ {
		err = writeBlock(f, blocks[i], offset)
		offset += int64(fsio.AlignUp(len(blocks[i])))
	}
	if err == nil {
		err = f.Datasync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, s.opts.fs.Remove(tmp))
	}
	if err = s.opts.fs.Rename(tmp, s.snapshotPath()); err != nil {
		return err
	}
	return s.opts.fs.SyncDir(s.opts.Dir)
}

// writeBlock writes a block that need not be aligned: whole pages of aligned memory as
// they are, the rest by way of a buffer.
func writeBlock(f fsio.File, b []byte, offset int64) error {
	const pieceBytes = 1 << 20
	if whole := len(b) &^ (fsio.Align - 1); whole > 0 && fsio.Aligned(b) {
		if err := f.WriteVec(b[:whole], nil, offset); err != nil {
			return err
		}
		b, offset = b[whole:], offset+int64(whole)
	}
	if len(b) == 0 {
		return nil
	}
	buf := store.AlignedBuffer(min(pieceBytes, fsio.AlignUp(len(b))))
	for len(b) > 0 {
		n := copy(buf, b)
		clear(buf[n:])
		if err := f.WriteVec(buf[:fsio.AlignUp(n)], nil, offset); err != nil {
			return err
		}
		b, offset = b[n:], offset+int64(n)
	}
	return nil
}

type snapshotWriter struct{ buf []byte }

func (w *snapshotWriter) add(v any) {
	var err error
	if w.buf, err = binary.Append(w.buf, binary.LittleEndian, v); err != nil {
		panic("store: snapshot head: " + err.Error())
	}
}

type snapshotReader struct {
	buf []byte
	err error
}

func (r *snapshotReader) next(v any) {
	if r.err != nil {
		return
	}
	var n int
	n, r.err = binary.Decode(r.buf, binary.LittleEndian, v)
	r.buf = r.buf[n:]
}

var errSnapshot = errors.New("snapshot is of no use")

// loadSnapshot makes a space from the snapshot of the last clean stop. The journal vouches for all
// usable segments.
func (s *Store) loadSnapshot(o *opening) (*space, error) {
	s.report.Begin("snapshot", 0)
	f, err := s.opts.fs.OpenFile(s.snapshotPath(), false, s.direct)
	if err != nil {
		return nil, err
	}
	p := s.newSpace(o)
	if err = errors.Join(s.loadFrom(f, p, o.usable), f.Close()); err != nil {
		p.table.Close()
		return nil, err
	}
	return p, nil
}

func (s *Store) loadFrom(f fsio.File, p *space, files []*segmentFile) error {
	heads := make(map[uint32]*segmentFile, len(files))
	for _, e := range files {
		heads[e.id] = e
	}
	buf, err := readSnapshotHead(f)
	if err != nil {
		return err
	}
	var head snapshotHead
	r := &snapshotReader{buf: buf}
	r.next(&head)
	switch {
	case r.err != nil:
		return r.err
	case head.ByteOrder != byteOrderMark || head.Version != snapshotVersion || head.EntryBytes != index.EntryBytes:
		return fmt.Errorf("%w: made by another program", errSnapshot)
	case head.Store != s.id || head.Opens != s.opens:
		return fmt.Errorf("%w: of opening %d, the last was %d", errSnapshot, head.Opens, s.opens)
	case int(head.Segments) != len(heads):
		return fmt.Errorf("%w: %d segments, the journal has %d", errSnapshot, head.Segments, len(heads))
	}
	im := index.Image{Limit: index.Ref(head.Limit), Clock: head.Clock, Count: int(head.Count), Bytes: int64(head.Bytes),
		Buckets: int(head.Buckets), Wrapped: int(head.Wrapped)}
	segments, err := s.snapshotSegments(r, &head, heads)
	if err != nil {
		return err
	}
	for range head.Spare {
		var e snapshotRange
		r.next(&e)
		im.Spare = append(im.Spare, index.Range{Base: index.Ref(e.Base), Slots: e.Slots})
	}
	if r.err != nil {
		return r.err
	}
	if err := p.table.Prepare(&im); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	if err := loadBlocks(f, r, p.table, &im, int(head.Blocks)); err != nil {
		return err
	}
	s.seq.Store(head.Seq)
	for _, e := range segments {
		p.takeIn(newSegment(heads[e.ID].found(), index.Ref(e.Base)))
	}
	return nil
}

func readSnapshotHead(f fsio.File) ([]byte, error) {
	prefix := store.AlignedBuffer(fsio.Align)
	if err := f.ReadVec(prefix, nil, 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(prefix[8:])
	if string(prefix[:8]) != snapshotMagic || n > maxHeadBytes {
		return nil, fmt.Errorf("%w: head", errSnapshot)
	}
	buf := store.AlignedBuffer(fsio.AlignUp(int(n) + snapshotPrefixBytes))
	if err := f.ReadVec(buf, nil, 0); err != nil {
		return nil, err
	}
	head := buf[snapshotPrefixBytes : snapshotPrefixBytes+int(n)]
	if xxh3.Hash(head) != binary.LittleEndian.Uint64(prefix[16:]) {
		return nil, fmt.Errorf("%w: checksum of head", errSnapshot)
	}
	return head, nil
}

func (s *Store) snapshotSegments(r *snapshotReader, head *snapshotHead, heads map[uint32]*segmentFile) ([]snapshotSegment, error) {
	segments := make([]snapshotSegment, head.Segments)
	for i := range segments {
		e := &segments[i]
		r.next(e)
		known, ok := heads[e.ID]
		if r.err != nil || !ok || known.head.Slots != e.Slots || known.head.SlotBytes != e.SlotBytes ||
			uint64(e.Base)+uint64(e.Slots) > uint64(head.Limit) || e.Base%refAlign != 0 {
			return nil, fmt.Errorf("%w: segment %d", errSnapshot, e.ID)
		}
	}
	return segments, nil
}

// loadBlocks reads all blocks into the index's memory and verifies them.
func loadBlocks(f fsio.File, r *snapshotReader, table *index.Table, im *index.Image, n int) error {
	dst := blocksOf(im)
	if n != len(dst) {
		return fmt.Errorf("%w: %d blocks, want %d", errSnapshot, n, len(dst))
	}
	blocks := make([]snapshotBlock, n)
	for i := range blocks {
		r.next(&blocks[i])
	}
	if r.err != nil {
		return r.err
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, snapshotReaders)
	for w := range errs {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[w] == nil; i = int(next.Add(1)) - 1 {
				errs[w] = loadBlock(f, table, &blocks[i], dst[i], i)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	count := 0
	for i := range im.Hash {
		n, err := table.CheckHash(i)
		if err != nil {
			return fmt.Errorf("%w: %w", errSnapshot, err)
		}
		count += n
	}
	if count != im.Count {
		return fmt.Errorf("%w: the hash table has %d records, not %d", errSnapshot, count, im.Count)
	}
	return nil
}

func loadBlock(f fsio.File, table *index.Table, b *snapshotBlock, dst []byte, i int) error {
	if int64(len(dst)) != b.Bytes {
		return fmt.Errorf("%w: block %d has %d bytes, want %d", errSnapshot, i, b.Bytes, len(dst))
	}
	if err := readBlock(f, dst, b.Offset); err != nil {
		return err
	}
	if xxh3.Hash(dst) != b.Sum {
		return fmt.Errorf("%w: checksum of block %d", errSnapshot, i)
	}
	if first := i * index.ImageRun; first < int(table.Limit()) {
		table.Finish(index.Ref(first), index.Ref(first+len(dst)/index.EntryBytes))
	}
	return nil
}

// readBlock is the inverse of writeBlock.
func readBlock(f fsio.File, b []byte, offset int64) error {
	if whole := len(b) &^ (fsio.Align - 1); whole > 0 && fsio.Aligned(b) {
		if err := f.ReadVec(b[:whole], nil, offset); err != nil {
			return err
		}
		b, offset = b[whole:], offset+int64(whole)
	}
	if len(b) == 0 {
		return nil
	}
	buf := store.AlignedBuffer(fsio.AlignUp(len(b)))
	if err := f.ReadVec(buf, nil, offset); err != nil {
		return err
	}
	copy(b, buf)
	return nil
}
