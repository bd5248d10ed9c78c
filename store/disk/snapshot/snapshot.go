// Package snapshot keeps the index of a store across a clean stop. A snapshot is the index's memory
// as it is: a head that says which store, which opening and which program wrote it and where each
// block lies, and then the blocks, each with a checksum, aligned for direct I/O. It is read in
// parallel straight into the memory of the new index. The integers of the blocks are in the byte
// order of the machine, which the head tells.
package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/record"
	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"
)

const (
	magic         = "KVCNSNP1"
	version       = 4
	byteOrderMark = 0x0102030405060708
	// readers is how many goroutines load blocks: enough to keep the disk and two
	// cores busy.
	readers = 4
	// maxHeadBytes bounds a head before it is read: 24 bytes for each segment, block and tenant, 8
	// for each spare range.
	maxHeadBytes = 64 << 20
)

// fixedHead is the fixed part of a head.
type fixedHead struct {
	ByteOrder  uint64
	Version    uint32
	EntryBytes uint32
	Buckets    uint32 // of the hash table
	Wrapped    uint32 // the first of them that may hold what belongs at the end
	Segments   uint32
	Spare      uint32
	Blocks     uint32
	Limit      uint32
	Tenants    uint32
	Store      record.StoreID
	Opens      uint64
	Seq        uint64
	Clock      uint64
	Count      uint64
	Bytes      uint64
	Keys       uint64
}

type segmentEntry struct {
	ID, Slots uint32
	SlotBytes int64
	Base      uint32
	_         uint32
}

type rangeEntry struct{ Base, Slots uint32 }

type blockEntry struct {
	Offset int64
	Bytes  int64
	Sum    uint64
}

// Name identifies the state that a snapshot is of: the opening of a store.
type Name struct {
	Store record.StoreID
	Opens uint64
	// Keys stands for the keys that the opening had: others make other records usable.
	Keys uint64
}

// Segment is a segment that the index has slots of.
type Segment struct {
	ID, Slots uint32
	SlotBytes int64
	Base      index.Ref
}

// File is the file of a store's snapshot.
type File struct {
	FS     fsio.FS
	Path   string
	Direct bool
}

// blocksOf returns the blocks of an image in their order: entries, the hash table, the numbers of slots' tenants.
func blocksOf(im *index.Image) [][]byte { return slices.Concat(im.Entries, im.Hash, im.Owners) }

// Save writes the index. seq is the last sequence number that was given. fits says whether a file
// of that many bytes may be written. Nothing may change the index meanwhile.
func (f File) Save(name Name, seq uint64, segments []Segment, table *index.Table, fits func(bytes int64) bool) error {
	im := table.Image()
	blocks := blocksOf(&im)
	head := fixedHead{
		ByteOrder: byteOrderMark, Version: version, EntryBytes: index.EntryBytes,
		Buckets: uint32(im.Buckets), Wrapped: uint32(im.Wrapped), Segments: uint32(len(segments)), Spare: uint32(len(im.Spare)),
		Blocks: uint32(len(blocks)), Store: name.Store, Opens: name.Opens, Seq: seq,
		Limit: uint32(im.Limit), Tenants: uint32(len(im.Tenants)), Clock: im.Clock, Count: uint64(im.Count), Bytes: uint64(im.Bytes), Keys: name.Keys,
	}
	w := headWriter{}
	w.add(&head)
	for _, g := range segments {
		w.add(&segmentEntry{ID: g.ID, Slots: g.Slots, SlotBytes: g.SlotBytes, Base: uint32(g.Base)})
	}
	for _, r := range im.Spare {
		w.add(&rangeEntry{uint32(r.Base), r.Slots})
	}
	for i := range im.Tenants {
		w.add(&im.Tenants[i])
	}
	headBytes := len(w.buf) + len(blocks)*binary.Size(blockEntry{})
	offset := int64(fsio.AlignUp(headBytes + prefixBytes))
	for _, b := range blocks {
		w.add(&blockEntry{Offset: offset, Bytes: int64(len(b)), Sum: xxh3.Hash(b)})
		offset += int64(fsio.AlignUp(len(b)))
	}
	if !fits(offset) {
		return fmt.Errorf("save snapshot of %d bytes: it would pass the cap or take space that must stay free", offset)
	}
	if err := f.write(w.buf, blocks); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	return nil
}

// prefixBytes are before the head: magic, the head's length and its checksum.
const prefixBytes = 24

func (f File) write(head []byte, blocks [][]byte) (err error) {
	tmp := f.Path + ".tmp"
	_ = f.FS.Remove(tmp)
	out, err := f.FS.OpenFile(tmp, true, f.Direct)
	if err != nil {
		return err
	}
	first := store.AlignedBuffer(fsio.AlignUp(len(head) + prefixBytes))
	copy(first, magic)
	binary.LittleEndian.PutUint64(first[8:], uint64(len(head)))
	binary.LittleEndian.PutUint64(first[16:], xxh3.Hash(head))
	copy(first[prefixBytes:], head)
	err = out.WriteVec(first, nil, 0)
	offset := int64(len(first))
	for i := 0; err == nil && i < len(blocks); i++ {
		err = writeBlock(out, blocks[i], offset)
		offset += int64(fsio.AlignUp(len(blocks[i])))
	}
	if err == nil {
		err = out.Datasync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return errors.Join(err, f.FS.Remove(tmp))
	}
	if err = f.FS.Rename(tmp, f.Path); err != nil {
		return err
	}
	return f.FS.SyncDir(filepath.Dir(f.Path))
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

type headWriter struct{ buf []byte }

func (w *headWriter) add(v any) {
	var err error
	if w.buf, err = binary.Append(w.buf, binary.LittleEndian, v); err != nil {
		panic("store: snapshot head: " + err.Error())
	}
}

type headReader struct {
	buf []byte
	err error
}

func (r *headReader) next(v any) {
	if r.err != nil {
		return
	}
	var n int
	n, r.err = binary.Decode(r.buf, binary.LittleEndian, v)
	r.buf = r.buf[n:]
}

var errUseless = errors.New("snapshot is of no use")

// ErrOtherKeys says that a snapshot is the right one but for its keys.
var ErrOtherKeys = fmt.Errorf("%w: made with other keys", errUseless)

// Load fills a new index from the snapshot of that name, and returns the segments that it has slots
// of and the last sequence number that was given. An index that it fails to fill is of no use. The
// error is that of a missing file if there is no snapshot.
func (f File) Load(name Name, table *index.Table) (segments []Segment, seq uint64, err error) {
	in, err := f.FS.OpenFile(f.Path, false, f.Direct)
	if err != nil {
		return nil, 0, err
	}
	segments, seq, err = load(in, name, table)
	return segments, seq, errors.Join(err, in.Close())
}

func load(f fsio.File, name Name, table *index.Table) (segments []Segment, seq uint64, err error) {
	buf, err := readHead(f)
	if err != nil {
		return nil, 0, err
	}
	var head fixedHead
	r := &headReader{buf: buf}
	r.next(&head)
	switch {
	case r.err != nil:
		return nil, 0, r.err
	case head.ByteOrder != byteOrderMark || head.Version != version || head.EntryBytes != index.EntryBytes:
		return nil, 0, fmt.Errorf("%w: made by another program", errUseless)
	case head.Store != name.Store || head.Opens != name.Opens:
		return nil, 0, fmt.Errorf("%w: of opening %d, the last was %d", errUseless, head.Opens, name.Opens)
	case head.Keys != name.Keys:
		return nil, 0, ErrOtherKeys
	}
	im := index.Image{Limit: index.Ref(head.Limit), Clock: head.Clock, Count: int(head.Count), Bytes: int64(head.Bytes),
		Buckets: int(head.Buckets), Wrapped: int(head.Wrapped)}
	for range head.Segments {
		var e segmentEntry
		if r.next(&e); r.err != nil || uint64(e.Base)+uint64(e.Slots) > uint64(head.Limit) {
			return nil, 0, fmt.Errorf("%w: segment %d", errUseless, e.ID)
		}
		segments = append(segments, Segment{ID: e.ID, Slots: e.Slots, SlotBytes: e.SlotBytes, Base: index.Ref(e.Base)})
	}
	for range head.Spare {
		var e rangeEntry
		if r.next(&e); r.err != nil {
			return nil, 0, r.err
		}
		im.Spare = append(im.Spare, index.Range{Base: index.Ref(e.Base), Slots: e.Slots})
	}
	for range head.Tenants {
		var e tenants.Saved
		if r.next(&e); r.err != nil {
			return nil, 0, r.err
		}
		im.Tenants = append(im.Tenants, e)
	}
	if err := table.Prepare(&im); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errUseless, err)
	}
	return segments, head.Seq, loadBlocks(f, r, table, &im, int(head.Blocks))
}

func readHead(f fsio.File) ([]byte, error) {
	prefix := store.AlignedBuffer(fsio.Align)
	if err := f.ReadVec(prefix, nil, 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(prefix[8:])
	if string(prefix[:8]) != magic || n > maxHeadBytes {
		return nil, fmt.Errorf("%w: head", errUseless)
	}
	buf := store.AlignedBuffer(fsio.AlignUp(int(n) + prefixBytes))
	if err := f.ReadVec(buf, nil, 0); err != nil {
		return nil, err
	}
	head := buf[prefixBytes : prefixBytes+int(n)]
	if xxh3.Hash(head) != binary.LittleEndian.Uint64(prefix[16:]) {
		return nil, fmt.Errorf("%w: checksum of head", errUseless)
	}
	return head, nil
}

// loadBlocks reads all blocks into the index's memory and verifies them.
func loadBlocks(f fsio.File, r *headReader, table *index.Table, im *index.Image, n int) error {
	dst := blocksOf(im)
	if n != len(dst) {
		return fmt.Errorf("%w: %d blocks, want %d", errUseless, n, len(dst))
	}
	blocks := make([]blockEntry, n)
	for i := range blocks {
		r.next(&blocks[i])
	}
	if r.err != nil {
		return r.err
	}
	var reading errgroup.Group
	reading.SetLimit(readers)
	for i := range blocks {
		reading.Go(func() error { return loadBlock(f, table, &blocks[i], dst[i], i) })
	}
	if err := reading.Wait(); err != nil {
		return err
	}
	for _, b := range im.Owners {
		if err := table.Tenants().Check(b); err != nil {
			return fmt.Errorf("%w: %w", errUseless, err)
		}
	}
	count := 0
	for i := range im.Hash {
		n, err := table.CheckHash(i)
		if err != nil {
			return fmt.Errorf("%w: %w", errUseless, err)
		}
		count += n
	}
	if count != im.Count {
		return fmt.Errorf("%w: the hash table has %d records, not %d", errUseless, count, im.Count)
	}
	return nil
}

func loadBlock(f fsio.File, table *index.Table, b *blockEntry, dst []byte, i int) error {
	if int64(len(dst)) != b.Bytes {
		return fmt.Errorf("%w: block %d has %d bytes, want %d", errUseless, i, b.Bytes, len(dst))
	}
	if err := readBlock(f, dst, b.Offset); err != nil {
		return err
	}
	if xxh3.Hash(dst) != b.Sum {
		return fmt.Errorf("%w: checksum of block %d", errUseless, i)
	}
	if first := i * index.ImageRun; first < int(table.Limit()) { // else it has no entries
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
