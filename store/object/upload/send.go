package upload

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store"
)

const (
	// readBytes are read at one time, so that a load that comes waits for little.
	readBytes = 8 << 20
	// turnPause is how long reads of loads are waited for before looking again, turnTime how long in
	// all: an object must not stay in memory indefinitely because loads never end.
	turnPause, turnTime = time.Millisecond, time.Second
)

// flight is an object in memory, from its first read to the target's last report.
type flight struct {
	u      *Uploader
	object *object
	buffer *buffer // nil before the first read
	reads  []store.ReadOp
	writes []store.WriteOp
	left   atomic.Int32 // writes that were not reported

	// What became of the records, guarded by the uploader's mutex.
	retry   []item // failed, and may succeed later
	err     error  // of the last of these
	stored  int
	refused int
	opened  bool // the namespace, at the target
}

// send reads an object and hands it to the target. What follows comes from the target's reports.
func (u *Uploader) send(o *object) {
	f := &flight{u: u, object: o}
	if items := u.unknown(o); len(items) > 0 {
		if err := f.read(items); err != nil {
			f.fail(items, err)
		} else if len(f.writes) > 0 {
			f.write()
			return
		}
	}
	f.land()
}

// unknown returns those of an object's records that the target does not have.
func (u *Uploader) unknown(o *object) []item {
	at := make([]bool, len(o.items))
	u.target.Has(o.lane.id.ns, o.lane.id.shard, keys(nil, o.items), at)
	var items []item
	for i, it := range o.items {
		if !at[i] {
			items = append(items, it)
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.count.Deduplicated += uint64(len(o.items) - len(items))
	return items
}

// read reads records into a buffer, in parts and between the reads of loads, and makes writes of them.
// Records that cannot be read are counted and left out.
func (f *flight) read(items []item) (err error) {
	u, id := f.u, f.object.lane.id
	payloadBytes := u.source.PayloadBytes(id.ns, id.shard)
	if payloadBytes != f.object.payloadBytes { // a shard takes another size when all its records have gone
		u.resized(f.object, len(items), payloadBytes)
		return nil
	}
	slot := store.PayloadBufferSize(payloadBytes)
	if f.buffer, err = u.memory.get(slot * len(items)); err != nil {
		return err
	}
	f.reads = make([]store.ReadOp, len(items))
	for i := range items {
		op := &f.reads[i]
		op.ID = store.RecordID{Namespace: id.ns, Shard: id.shard, Key: items[i].key}
		op.Payload = f.buffer.bytes[i*slot : i*slot+payloadBytes : (i+1)*slot]
		op.Ahead = true
		op.OnSettled = func(*store.ReadOp) { f.buffer.release() }
	}
	for n := 0; n < len(f.reads); {
		part := f.reads[n:min(n+max(readBytes/slot, 1), len(f.reads))]
		n += len(part)
		f.export(part)
	}
	f.collect(len(items))
	return nil
}

// export reads a part when no load waits for the source.
func (f *flight) export(part []store.ReadOp) {
	u := f.u
	u.awaitTurn()
	ctx, cancel := context.WithTimeout(u.ctx, u.o.ReadTimeout)
	defer cancel()
	ops := make([]*store.ReadOp, len(part))
	for i := range part {
		ops[i] = &part[i]
	}
	u.source.Export(ctx, ops, func(op *store.ReadOp) {
		if !op.Settled() {
			f.buffer.users.Add(1) // until OnSettled
		}
	})
}

// awaitTurn waits until the source owes no load anything, but not for long.
func (u *Uploader) awaitTurn() {
	for until := time.Now().Add(turnTime); time.Now().Before(until); {
		if s := u.source.Speed(); s.QueuedBytes <= s.AheadBytes {
			return
		}
		if !sleep.For(u.ctx, turnPause, nil) {
			return
		}
	}
}

// collect makes writes of what was read.
func (f *flight) collect(n int) {
	f.writes = make([]store.WriteOp, 0, n)
	var gone, dropped int
	for i := range f.reads {
		switch op := &f.reads[i]; {
		case op.Err == nil:
			f.writes = append(f.writes, store.WriteOp{Record: op.Record, Scope: op.Scope, Payload: op.Payload})
		case errors.Is(op.Err, store.ErrGone):
			gone++
		default:
			dropped++
		}
	}
	u := f.u
	u.mu.Lock()
	defer u.mu.Unlock()
	u.count.Gone += uint64(gone)
	if u.ctx.Err() != nil {
		u.count.abandoned += dropped
	} else if dropped > 0 {
		u.count.Dropped += uint64(dropped)
		u.missed.Store(true)
	}
}

// resized counts records that have gone, since their shard has another size now, and corrects the lane's.
func (u *Uploader) resized(o *object, records, payloadBytes int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.count.Gone += uint64(records)
	if payloadBytes > 0 {
		u.q.resize(o.lane, payloadBytes)
	}
	u.missed.Store(true) // there may be one of the new size among them
}

// write hands over what was read.
func (f *flight) write() {
	u := f.u
	if _, err := u.target.OpenNamespace(u.policies.of(f.object.lane.id.ns).manifest); err != nil {
		for i := range f.writes {
			f.result(&f.writes[i], err)
		}
		f.land()
		return
	}
	f.opened = true
	ops := make([]*store.WriteOp, len(f.writes))
	for i := range f.writes {
		ops[i] = &f.writes[i]
	}
	f.left.Store(int32(len(ops) + 1))
	accepted, err := u.target.Write(ops, func(op *store.WriteOp) {
		f.result(op, op.Err)
		f.reported(1)
	})
	if err == nil {
		err = store.ErrBusy
	}
	for _, op := range ops[accepted:] {
		f.result(op, err)
	}
	f.reported(1 + len(ops) - accepted)
}

// reported counts writes that are settled. The last one ends the flight.
func (f *flight) reported(n int) {
	if f.left.Add(int32(-n)) == 0 {
		f.land()
	}
}

// result sorts what became of a record.
func (f *flight) result(op *store.WriteOp, err error) {
	f.u.mu.Lock()
	defer f.u.mu.Unlock()
	switch {
	case err == nil:
		f.stored++
	case errors.Is(err, store.ErrInvalid), errors.Is(err, store.ErrTooLarge):
		f.refused++
		f.err = err
	default:
		f.retry = append(f.retry, item{key: op.ID.Key, parent: op.Parent, since: f.object.items[0].since})
		f.err = err
	}
}

// fail has all records tried again.
func (f *flight) fail(items []item, err error) {
	f.u.mu.Lock()
	defer f.u.mu.Unlock()
	f.retry, f.err = items, err
}

// land ends the flight: what failed goes back into the queue, and the memory is free.
func (f *flight) land() {
	u := f.u
	u.mu.Lock()
	u.q.landed(f.object)
	u.requeue(f)
	u.count.Uploaded += uint64(f.stored)
	u.count.Dropped += uint64(f.refused)
	if f.stored > 0 {
		u.count.Objects++
	}
	fails, works := u.adapt(f)
	if f.opened {
		u.toClose = append(u.toClose, f.object.lane.id.ns)
	}
	u.flying--
	u.mu.Unlock()
	if f.buffer != nil {
		f.buffer.release()
	}
	u.look()
	switch {
	case f.refused > 0:
		u.o.Logger.Warn("upload: the object tier refused records; they stay on this node", "records", f.refused, "error", f.err)
	case fails:
		u.o.Logger.Warn("upload: records cannot be uploaded; tried again", "records", len(f.retry), "error", f.err)
	case works:
		u.o.Logger.Info("upload: records can be uploaded again")
	}
}
