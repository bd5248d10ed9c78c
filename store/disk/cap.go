package disk

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/journal"
)

const (
	// defaultCapNum / defaultCapDen of what is free or the store's own is the cap of a
	// store that was given none: a file system that is nearly full is slow, and others
	// write to it.
	defaultCapNum, defaultCapDen = 4, 5
	// smallCapBytes is a default cap below which something is likely to be wrong: a disk
	// that is full, or not mounted yet.
	smallCapBytes = 1 << 30
	// The default of Options.MinFreeBytes is the larger of this part of the file system and
	// minFreeBytes, but no more than minFreeMost of it.
	minFreePart, minFreeBytes, minFreeMost = 20, 10 << 30, 4
)

// segmentsOfCap is how many segments a cap is divided into at least, memTablePart of the
// cap the size of a memtable; filesOfCap bounds the number of segment files of a large cap.
const (
	segmentsOfCap = 32
	memTablePart  = 512
	filesOfCap    = 4096
)

// setSpace finds out how much the store may occupy.
func (s *Store) setSpace() error {
	segments := filepath.Join(s.opts.Dir, segmentDir)
	var room fsio.Room
	unknown := fsio.Again(func() (err error) { room, err = s.opts.fs.Room(segments); return err })
	if unknown != nil {
		s.report.Note("cannot ask how much space is free: no segment is made before that is known (%v)", unknown)
	}
	limit, source, err := s.findCap(room, unknown)
	if err != nil {
		return err
	}
	nominal := max(s.opts.SegmentBytes, limit/filesOfCap)
	s.space = &space{
		fs: s.opts.fs, dir: segments, store: s.id, direct: s.direct,
		maxBytes: limit, capSource: source, nominal: min(nominal, limit/segmentsOfCap), minFreeRule: minFreeRule{s.opts.MinFreeBytes, s.opts.MinFreePercent},
		memTable: min(max(limit/memTablePart, journal.MinMemTableBytes), journal.MaxMemTableBytes),
	}
	s.space.forgetSegments(s.table)
	s.space.nextID, s.space.awaited = 1, make(map[uint32]uint32)
	if s.opts.checkOnly {
		// The cap it is used with is not known: the journal's logs must not grow.
		s.space.memTable, s.space.minFreeRule = journal.MinMemTableBytes, minFreeRule{bytes: -1}
		return nil
	}
	if unknown == nil {
		s.space.setRoom(room)
	} // else the first answer sets it
	s.opts.Logger.Info("store: cap", "max_bytes", limit, "source", source, "free_bytes", room.FreeBytes,
		"min_free_bytes", s.space.minFree, "file_system_bytes", room.TotalBytes)
	return nil
}

// findCap returns the cap and where it comes from; unknown says why room is not known. What
// cannot be measured must not make the cap small, since that costs records. Only where nothing
// can be measured is there no cap at all.
func (s *Store) findCap(room fsio.Room, unknown error) (limit int64, source string, err error) {
	if s.opts.MaxBytes != 0 {
		return s.opts.MaxBytes, "configured", nil
	}
	own, err := s.ownBytes()
	switch {
	case err != nil && unknown != nil:
		return 0, "", fmt.Errorf("find a cap: %w: %w", unknown, err)
	case unknown != nil:
		return max(MinMaxBytes, own/defaultCapNum*defaultCapDen), "what the store occupies and a quarter more: the file system does not say what is free", nil
	case err != nil:
		s.report.Note("cannot measure what the store occupies: until the next start its cap is that of a store alone in its file system (%v)", err)
		limit, source = s.capAlone(room)
		return limit, source, nil
	}
	limit = max(MinMaxBytes, (room.FreeBytes+own)/defaultCapDen*defaultCapNum)
	if limit < smallCapBytes {
		s.opts.Logger.Warn("store: little space: the cap is small", "max_bytes", limit, "free_bytes", room.FreeBytes,
			"remedy", "free space in the file system of the store, see that its disk is mounted, or set max_bytes; then restart kvconnd")
	}
	return limit, "80% of free and own space", nil
}

// capAlone is the cap of a store that has the file system for itself, and so no smaller than the
// right one. With the segments in a file system of their own that could be a little larger: what
// lies beside them counts, too.
func (s *Store) capAlone(room fsio.Room) (limit int64, source string) {
	dir, err := s.opts.fs.Room(s.opts.Dir)
	if err != nil || dir.Device != room.Device {
		return max(MinMaxBytes, room.TotalBytes), "the file system: what the store occupies cannot be measured"
	}
	return max(MinMaxBytes, room.TotalBytes/defaultCapDen*defaultCapNum), "80% of the file system: what the store occupies cannot be measured"
}

// ownBytes is what the store occupies: what its directory does, or, where that cannot be
// measured, what its segments have room for.
func (s *Store) ownBytes() (own int64, err error) {
	err = fsio.Again(func() (err error) { own, err = s.opts.fs.PhysicalBytes(s.opts.Dir); return err })
	files := s.opening.files
	if err == nil || slices.ContainsFunc(files, (*segmentFile).untold) {
		return own, err
	}
	sizes := int64(0)
	for _, f := range files {
		sizes += f.size
	}
	return max(own, sizes), nil
}

// minFreeRule is what must stay free, in bytes or percent, see [Options]; the zero value is the
// default.
type minFreeRule struct {
	bytes   int64
	percent float64
}

// of is what must stay free in a file system of total bytes.
func (r minFreeRule) of(total int64) int64 {
	switch {
	case r.bytes < 0:
		return 0
	case r.bytes > 0:
		return r.bytes
	case r.percent > 0:
		return max(1, int64(float64(total)*r.percent/100))
	}
	return min(max(total/minFreePart, minFreeBytes), total/minFreeMost)
}
