package recovery

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/record"
)

const (
	// stretchSlotBytes is the slot size up to which whole stretches of a segment are read
	// for the sake of the headers in them: a request costs a disk as much as that many bytes.
	stretchSlotBytes = 32 << 10
	// stretchBytes is the size of a stretch.
	stretchBytes = 256 << 10
)

// headerReader reads the headers of records where they lie.
type headerReader struct {
	s   *State
	buf []byte
}

func newHeaderReader(s *State) *headerReader {
	return &headerReader{s: s, buf: store.AlignedBuffer(stretchBytes)}
}

// read returns the record that the header of a slot names. The error is [record.ErrBlank],
// [record.ErrBad], or one of the disk.
func (h *headerReader) read(f fsio.File, g *format.Segment, slot uint32) (record.Header, error) {
	b := h.buf[:record.HeaderBytes]
	if err := f.ReadVec(b, nil, g.Offset(slot)); err != nil {
		return record.Header{}, err
	}
	return h.decode(b, g, slot)
}

func (h *headerReader) decode(b []byte, g *format.Segment, slot uint32) (r record.Header, err error) {
	if err := r.Decode(b); err != nil {
		return r, err
	}
	if r.Store != h.s.ID || r.SegmentID != g.ID || r.Slot != slot || r.Seq == 0 ||
		r.PayloadBytes == 0 || r.PayloadBytes > store.MaxPayloadBytes || segment.SlotBytes(int(r.PayloadBytes)) != g.SlotBytes {
		return r, record.ErrBad
	}
	return r, nil
}

// scan reads the headers of a run of slots.
func (h *headerReader) scan(g *segment.Segment, first, slots uint32) *AdoptJob {
	job := &AdoptJob{Segment: g, First: first, Slots: slots, Records: make([]journal.Record, 0, slots)}
	if g.SlotBytes > stretchSlotBytes {
		for slot := first; slot < first+slots; slot++ {
			r, err := h.read(g.File, &g.Segment, slot)
			h.take(job, slot, &r, err)
		}
		return job
	}
	each := uint32(stretchBytes / g.SlotBytes)
	for slot := first; slot < first+slots; {
		n := min(each, first+slots-slot)
		// The payload of the last slot is of no interest.
		b := h.buf[:int64(n-1)*g.SlotBytes+record.HeaderBytes]
		if err := g.File.ReadVec(b, nil, g.Offset(slot)); err != nil {
			for end := slot + n; slot < end; slot++ {
				r, err := h.read(g.File, &g.Segment, slot)
				h.take(job, slot, &r, err)
			}
			continue
		}
		for i := range n {
			at := int64(i) * g.SlotBytes
			r, err := h.decode(b[at:at+record.HeaderBytes], &g.Segment, slot+i)
			h.take(job, slot+i, &r, err)
		}
		slot += n
	}
	return job
}

const (
	// headerTries is how often a header is read that the disk does not give, while it gives
	// others; while it gives none, headerTriesMost.
	headerTries, headerTriesMost = 3, 60
	// headerPause is the first pause between two tries, headerPauseMost the longest.
	headerPause, headerPauseMost = 50 * time.Millisecond, time.Second
)

// again reads the headers once more that the disk did not give. A disk that fails for a
// while is waited for: what is not read now is lost.
func (h *headerReader) again(ctx context.Context, job *AdoptJob) {
	if len(job.Unread) == 0 {
		return
	}
	pause := headerPause
	for try := 1; len(job.Unread) > 0 && try < headerTriesMost; try++ {
		if try >= headerTries && h.anyReadable(job.Segment) {
			break
		}
		if fsio.Sleep(ctx, pause); ctx.Err() != nil {
			return
		}
		pause = min(2*pause, headerPauseMost)
		slots := job.Unread
		job.Unread = nil
		for _, slot := range slots {
			r, err := h.read(job.Segment.File, &job.Segment.Segment, slot)
			h.take(job, slot, &r, err)
		}
	}
	slices.SortFunc(job.Records, func(a, b journal.Record) int { return cmp.Compare(a.Location.Slot, b.Location.Slot) })
}

// anyReadable reports whether the disk gives the header of a segment, or of one of some
// others whose records are being read.
func (h *headerReader) anyReadable(g *segment.Segment) bool {
	const others = 4
	b := h.buf[:record.HeaderBytes]
	some := h.s.Space.Unread()
	for _, o := range append(some[:min(others, len(some))], g) {
		if o.File.ReadVec(b, nil, 0) == nil {
			return true
		}
	}
	return false
}

// take adds what the header of a slot says to a job.
func (h *headerReader) take(job *AdoptJob, slot uint32, r *record.Header, err error) {
	switch {
	case errors.Is(err, record.ErrBlank), errors.Is(err, record.ErrNewer):
		return
	case errors.Is(err, record.ErrBad):
		job.damaged++
		return
	case err != nil:
		job.Unread = append(job.Unread, slot)
		return
	}
	if r.Needs&record.NeedsDecoding != 0 {
		return // no program puts such a record here
	}
	if h.s.hides(r.Cipher.Algorithm, r.Cipher.KeyID, noNamespace) {
		job.hidden++
		return
	}
	ns, err := h.s.opts.Namespaces.Find(r.Namespace)
	if err != nil {
		job.damaged++ // no number is left for it
		return
	}
	job.Records = append(job.Records, journal.Record{
		Location:  journal.Location{Segment: r.SegmentID, Slot: slot},
		Namespace: ns, Shard: r.Shard, Key: r.Key, Parent: r.Parent, ParentAt: journal.NoLocation,
		Depth: r.Depth, Bytes: r.PayloadBytes, Seq: r.Seq,
		Scope: r.Scope, KeyScheme: r.KeyScheme, Flags: r.Flags, Algorithm: r.Cipher.Algorithm, KeyID: r.Cipher.KeyID,
	})
}
