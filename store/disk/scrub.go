package disk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/report"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/record"
)

// Damage is a record that was found damaged and dropped.
type Damage = report.Damage

// checker reads and verifies records where they lie, past the queue of reads.
type checker struct {
	s       *Store
	payload bool
	header  []byte
	buf     []byte
}

func newChecker(s *Store, payload bool) *checker {
	return &checker{s: s, payload: payload, header: store.AlignedBuffer(record.HeaderBytes)}
}

// check verifies the record of a slot and drops it if it is damaged. It returns the bytes
// it read, and the damage if there is any. err is an error of the disk.
func (c *checker) check(g *segment.Segment, ref index.Ref) (bytes int64, damage *Damage, err error) {
	id, found, ok := c.s.table.PinSlot(ref)
	if !ok {
		return 0, nil, nil
	}
	defer c.s.table.Unpin(ref)
	if c.s.space.At(ref) != g {
		return 0, nil, nil // given up, and the reference used again, before it was pinned
	}
	bytes, reason, err := c.verify(g, id, found)
	if err != nil {
		if c.s.readFailed(ref, found.Seq, err) {
			c.drop(&dropJob{removal: removal{ref, found.Seq, fsio.OfMedium(err)}})
		}
		return bytes, nil, err
	}
	if reason == nil {
		c.s.doubts.Read()
		return bytes, nil, nil
	}
	at := g.Location(ref)
	damage = &Damage{
		Namespace: c.s.recordID(id).Namespace.String(), Shard: int(id.Shard),
		Key: id.Key.String(), Segment: at.Segment, Slot: at.Slot, Reason: reason.Error(),
	}
	c.s.count.Corrupt.Add(1)
	c.drop(&dropJob{removal: removal{ref: ref, seq: found.Seq}})
	return bytes, damage, nil
}

// drop has the committer drop a record, and waits for it.
func (c *checker) drop(job *dropJob) {
	job.done = make(chan struct{})
	if c.s.commits.TryPush(job) {
		<-job.done
	}
}

// verify returns why a record is damaged, or nil.
func (c *checker) verify(g *segment.Segment, id index.ID, found index.Found) (bytes int64, reason, err error) {
	padded := 0
	if c.payload {
		padded = fsio.AlignUp(int(found.Bytes))
		if len(c.buf) <= padded {
			c.buf = store.AlignedBuffer(padded + 1) // with room for a tag
		}
	}
	slot := uint32(found.Ref - g.Base)
	if err := g.File.ReadVec(c.header, c.buf[:padded], g.Offset(slot)); err != nil {
		return 0, nil, fmt.Errorf("check slot %d of segment %d: %w: %w", slot, g.ID, store.ErrIO, err)
	}
	bytes = int64(padded + record.HeaderBytes)
	var h record.Header
	whole := c.s.recordID(id)
	want := c.s.want(g.Location(found.Ref), &whole, found.Seq, int(found.Bytes))
	if reason = c.s.opener.Begin(&h, c.header, &want); reason == nil && c.payload {
		stored := c.buf[:h.Stored()]
		reason = c.s.opener.Open(&h, c.header, stored, stored)
	}
	if errors.Is(reason, store.ErrUnreadable) {
		return bytes, nil, nil // no damage
	}
	return bytes, reason, nil
}

// scrub goes over all records again and again at a limited rate, until the store stops.
func (s *Store) scrub(ctx context.Context) {
	c := newChecker(s, true)
	for ctx.Err() == nil {
		for _, g := range s.space.InUse() {
			s.scrubSegment(ctx, c, g)
		}
		s.count.Scrubs.Add(1)
		fsio.Sleep(ctx, janitorInterval)
	}
}

func (s *Store) scrubSegment(ctx context.Context, c *checker, g *segment.Segment) {
	for ref := g.Base; ref < g.Base+index.Ref(g.Slots) && ctx.Err() == nil; ref++ {
		if s.space.At(ref) != g {
			return // given up meanwhile
		}
		bytes, damage, err := c.check(g, ref)
		if err != nil {
			s.opts.Logger.Warn("store: scrub could not read a record", "err", err,
				"remedy", "look for I/O errors in the kernel's log; if it goes on, replace the disk")
			fsio.Sleep(ctx, time.Second)
			continue
		}
		if damage != nil {
			s.opts.Logger.Warn("store: scrub dropped a corrupt record", "key", damage.Key, "segment", damage.Segment,
				"slot", damage.Slot, "reason", damage.Reason,
				"remedy", "none for one; check the disk if there are more")
		}
		s.count.ScrubBytes.Add(uint64(bytes))
		fsio.Sleep(ctx, time.Duration(float64(bytes)/float64(s.opts.ScrubBytesPerS)*float64(time.Second)))
	}
}
