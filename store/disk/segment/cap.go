package segment

import (
	"fmt"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/report"
)

const (
	// defaultCapNum / defaultCapDen of what is free or the store's own is the cap of a
	// store that was given none: a file system that is nearly full is slow, and others
	// write to it.
	defaultCapNum, defaultCapDen = 4, 5
	// smallCapBytes is a computed cap below which something is likely to be wrong: a disk
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

// MinBytes is the smallest cap: the journal's fixed cost and a few records.
const MinBytes = 8 << 20

// Limits say how much a store may occupy.
type Limits struct {
	MaxBytes int64
	// capSource says where MaxBytes comes from.
	capSource string
	nominal   int64 // bytes of a segment
	// minFreeRule is the option, which minFree follows from.
	minFreeRule MinFree
	MemTable    int64 // bytes of the journal's memtable
	// room is of the file system when last asked, and what was made since; minFree are the bytes
	// to leave free in it, 0 is none. Both are guarded by the mutex of the space.
	room    fsio.Room
	minFree int64
}

// LimitOptions are what limits follow from.
type LimitOptions struct {
	FS   fsio.FS
	Root string // the store's directory
	Dir  string // that of the segments
	// MaxBytes, MaxPercent, SegmentBytes and MinFree are as the user has them.
	MaxBytes, SegmentBytes int64
	MaxPercent             float64
	MinFree                MinFree
	// CheckOnly is set where the cap that the store is used with is not known.
	CheckOnly bool
	// Sizes is the length of all segment files, Told whether the disk told all of it.
	Sizes  int64
	Told   bool
	Report *report.Report
}

// FindLimits finds out how much the store may occupy.
func FindLimits(o LimitOptions) (l Limits, err error) {
	var room fsio.Room
	unknown := fsio.Again(func() (err error) { room, err = o.FS.Room(o.Dir); return err })
	if unknown != nil {
		o.Report.Note("cannot ask how much space is free: no segment is made before that is known (%v)", unknown)
	}
	limit, source, err := o.findCap(room, unknown)
	if err != nil {
		return l, err
	}
	l = Limits{
		MaxBytes: limit, capSource: source, minFreeRule: o.MinFree,
		nominal:  min(max(o.SegmentBytes, limit/filesOfCap), limit/segmentsOfCap),
		MemTable: min(max(limit/memTablePart, journal.MinMemTableBytes), journal.MaxMemTableBytes),
	}
	if o.CheckOnly {
		// The journal's logs must not grow.
		l.MemTable, l.minFreeRule = journal.MinMemTableBytes, MinFree{Bytes: -1}
		return l, nil
	}
	if unknown == nil {
		l.setRoom(room)
	} // else the first answer sets it
	o.Report.Logger.Info("store: cap", "max_bytes", limit, "source", source, "free_bytes", room.FreeBytes,
		"min_free_bytes", l.minFree, "file_system_bytes", room.TotalBytes)
	return l, nil
}

// findCap returns the cap and where it comes from; unknown says why room is not known. What
// cannot be measured must not make the cap small, since that costs records. Only where nothing
// can be measured is there no cap at all.
func (o *LimitOptions) findCap(room fsio.Room, unknown error) (limit int64, source string, err error) {
	if o.MaxBytes != 0 {
		return o.MaxBytes, "configured", nil
	}
	if o.MaxPercent > 0 && unknown == nil {
		limit = max(MinBytes, int64(float64(room.TotalBytes)*o.MaxPercent/100))
		o.warnOfSmall(limit, room)
		return limit, fmt.Sprintf("configured: %v%% of the file system", o.MaxPercent), nil
	}
	own, err := o.ownBytes()
	switch {
	case err != nil && unknown != nil:
		return 0, "", fmt.Errorf("find a cap: %w: %w", unknown, err)
	case unknown != nil:
		return max(MinBytes, own/defaultCapNum*defaultCapDen), "what the store occupies and a quarter more: the file system does not say what is free", nil
	case err != nil:
		o.Report.Note("cannot measure what the store occupies: until the next start its cap is that of a store alone in its file system (%v)", err)
		limit, source = o.capAlone(room)
		return limit, source, nil
	}
	limit = max(MinBytes, (room.FreeBytes+own)/defaultCapDen*defaultCapNum)
	o.warnOfSmall(limit, room)
	return limit, "80% of free and own space", nil
}

// warnOfSmall says that a cap that nobody gave as a size is smaller than anybody would want.
func (o *LimitOptions) warnOfSmall(limit int64, room fsio.Room) {
	if limit < smallCapBytes {
		o.Report.Logger.Warn("store: little space: the cap is small", "max_bytes", limit, "free_bytes", room.FreeBytes,
			"remedy", "free space in the file system of the store, see that its disk is mounted, or set max_bytes; then restart kvconnd")
	}
}

// capAlone is the cap of a store that has the file system for itself, and so no smaller than the
// right one. With the segments in a file system of their own that could be a little larger: what
// lies beside them counts, too.
func (o *LimitOptions) capAlone(room fsio.Room) (limit int64, source string) {
	dir, err := o.FS.Room(o.Root)
	if err != nil || dir.Device != room.Device {
		return max(MinBytes, room.TotalBytes), "the file system: what the store occupies cannot be measured"
	}
	return max(MinBytes, room.TotalBytes/defaultCapDen*defaultCapNum), "80% of the file system: what the store occupies cannot be measured"
}

// ownBytes is what the store occupies: what its directory does, or, where that cannot be
// measured, what its segments have room for.
func (o *LimitOptions) ownBytes() (own int64, err error) {
	err = fsio.Again(func() (err error) { own, err = o.FS.PhysicalBytes(o.Root); return err })
	if err == nil || !o.Told {
		return own, err
	}
	return max(own, o.Sizes), nil
}

// setRoom notes what the file system tells. The mutex of the space is held.
func (l *Limits) setRoom(room fsio.Room) {
	l.room = room
	l.minFree = l.minFreeRule.of(room.TotalBytes)
}

// MinFree is what must stay free, in bytes or percent, see [Options]; the zero value is the
// default.
type MinFree struct {
	Bytes   int64
	Percent float64
}

// of is what must stay free in a file system of total bytes.
func (r MinFree) of(total int64) int64 {
	switch {
	case r.Bytes < 0:
		return 0
	case r.Bytes > 0:
		return r.Bytes
	case r.Percent > 0:
		return max(1, int64(float64(total)*r.Percent/100))
	}
	return min(max(total/minFreePart, minFreeBytes), total/minFreeMost)
}
