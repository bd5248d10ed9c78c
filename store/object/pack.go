package object

import (
	"math"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

// class is what all records of an object have in common.
type class struct {
	ns           connector.NamespaceDigest
	shard        connector.Shard
	payloadBytes int
}

// packed are the writes of one object.
type packed struct {
	class
	writes []*write
}

// pack divides writes into objects of at most that many bytes of slots, one record at least, and keeps their sequence.
func pack(batch []*write, most int64) []*packed {
	var all []*packed
	open := make(map[class]*packed)
	for _, w := range batch {
		c := class{w.op.ID.Namespace, w.op.ID.Shard, len(w.op.Payload)}
		p := open[c]
		if slot := format.SlotBytes(c.payloadBytes); p == nil || len(p.writes) == format.MaxObjectRecords || int64(len(p.writes)+1)*slot > most {
			p = &packed{class: c}
			open[c] = p
			all = append(all, p)
		}
		p.writes = append(p.writes, w)
	}
	return all
}

// data is an object and its bytes: what is stored lies in the buffers of the writes where it can, so an object takes
// the memory of its headers.
type data struct {
	object format.Object
	body   body
}

// build makes an object with an id.
func (t *Tier) build(bucket format.BucketID, p *packed, id format.ObjectID) (*data, error) {
	now := t.now()
	d := &data{object: format.Object{
		ID: id, Namespace: p.ns, Shard: p.shard, PayloadBytes: uint32(p.payloadBytes), Created: now, Used: now,
		Records: make([]format.Record, len(p.writes)),
	}}
	width := t.namespaces.get(p.ns).width
	headers := make([]byte, len(p.writes)*record.HeaderBytes)
	o := &d.object
	var depth uint16
	for i, w := range p.writes {
		rec := &w.op.Record
		if i == 0 || rec.Parent != p.writes[i-1].op.ID.Key {
			depth = t.depths.after(rec.Parent)
			o.Runs = append(o.Runs, format.Run{First: uint16(i), Depth: depth, Parent: rec.Parent})
		} else if depth < math.MaxUint16 {
			depth++
		}
		o.Records[i] = format.Record{Key: rec.ID.Key, Start: uint16(d.body.bytes / format.Unit)}
		h := record.Header{
			Store: record.StoreID(id), Slot: uint32(i), Seq: uint64(i) + 1, Namespace: p.ns, Shard: p.shard, Depth: depth,
			Key: rec.ID.Key, Parent: rec.Parent, Proof: rec.Proof, Scope: w.op.Scope,
		}
		header := headers[i*record.HeaderBytes : (i+1)*record.HeaderBytes]
		stored := t.store(&h, header, w.op.Payload, width)
		o.Needs |= uint16(h.Needs)
		o.Codec = max(o.Codec, h.Codec)
		d.body.add(header)
		d.body.add(stored)
		if i == len(p.writes)-1 || p.writes[i+1].op.Parent != rec.ID.Key {
			t.depths.note(rec.ID.Key, depth)
		}
	}
	tail, err := o.Tail(d.body.bytes, bucket, t.o.Ring)
	if err != nil {
		return nil, err
	}
	d.body.add(tail)
	return d, nil
}

// store returns what is stored of a payload, with zeros up to a multiple of a unit, and completes its header.
func (t *Tier) store(h *record.Header, header, payload []byte, width int) []byte {
	if t.builder.Ring == nil && t.builder.Chooser == nil {
		t.builder.Build(h, header, nil, payload, width)
		padded := payload[:store.PayloadBufferSize(len(payload))]
		clear(padded[len(payload):])
		return padded
	}
	padded := store.AlignedBuffer(len(payload) + seal.TagBytes) // room that sealing uses for a moment
	stored := t.builder.Build(h, header, padded, payload, width)
	if &stored[0] == &payload[0] { // neither sealed nor smaller
		padded = payload[:store.PayloadBufferSize(len(payload))]
	} else {
		padded = padded[:store.PayloadBufferSize(len(stored))]
	}
	clear(padded[len(stored):])
	return padded
}

// maxDepths bounds the blocks whose depths are remembered.
const maxDepths = 1 << 14

// depths are those of the last blocks of runs that were written, so that what follows says its own.
type depths struct {
	mu sync.Mutex
	of map[connector.Key]uint16
}

// after is the depth of the block after parent: 1 if that is not known.
func (d *depths) after(parent connector.Key) uint16 {
	if parent == (connector.Key{}) {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.of[parent]
	if n == math.MaxUint16 {
		return n
	}
	return n + 1
}

// note notes the depth of a run's last block.
func (d *depths) note(key connector.Key, depth uint16) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil || len(d.of) >= maxDepths {
		d.of = make(map[connector.Key]uint16)
	}
	d.of[key] = depth
}
