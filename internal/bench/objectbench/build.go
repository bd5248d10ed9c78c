package objectbench

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	mathrand "math/rand/v2"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/bench/storebench"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/codec"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

// elementBytes is the width of the elements of payloads: they are bfloat16.
const elementBytes = 2

// fillNoise makes values as those of keys and values are: normally distributed bfloat16.
func fillNoise(b []byte) {
	const distinct = 4 << 20 // more than any compressor looks back, and quick to make
	g := mathrand.New(mathrand.NewPCG(1, 2))
	n := min(len(b), distinct) &^ 1
	for i := 0; i < n; i += elementBytes {
		binary.LittleEndian.PutUint16(b[i:], uint16(math.Float32bits(float32(g.NormFloat64()))>>16))
	}
	for done := n; done > 0 && done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}

// form is how records are stored.
type form struct {
	name  string
	ring  *seal.Ring
	build *record.Builder
	// objects are memory for one object each, one an upload; built are the parts of them that the last
	// object takes.
	objects, built [][]byte
}

func (b *bench) newForm(name string, sealed, compressed bool) (*form, error) {
	f := &form{name: name, build: new(record.Builder), objects: make([][]byte, b.o.Uploads), built: make([][]byte, b.o.Uploads)}
	if sealed {
		var key seal.Key
		_, _ = rand.Read(key[:])
		ring, err := seal.New(key)
		if err != nil {
			return nil, err
		}
		f.ring, f.build.Ring = ring, ring
	}
	if compressed {
		c, err := codec.New(b.o.Uploads)
		if err != nil {
			return nil, err
		}
		f.build.Chooser = codec.NewChooser(c)
	}
	slots := b.o.perObject() * b.o.slotBytes()
	for i := range f.objects {
		f.objects[i] = store.AlignedBuffer(slots + format.Unit + b.o.perObject()*64)
		if f.plain() { // the disk is read into the object's memory
			for at := 0; at < slots; at += b.o.slotBytes() {
				copy(f.objects[i][at+record.HeaderBytes:], b.noise[at:at+b.o.BlockBytes])
			}
		}
	}
	return f, nil
}

func (f *form) plain() bool { return f.build.Ring == nil && f.build.Chooser == nil }

// record is record n of a round, which is one chain.
func (b *bench) record(n int) store.Record {
	r := store.Record{ID: store.RecordID{Namespace: b.namespace, Key: storebench.Key(0, n)}}
	if n > 0 {
		r.Parent = storebench.Key(0, n-1)
	}
	binary.LittleEndian.PutUint64(r.Proof[:], uint64(n))
	return r
}

// build builds object i of a round in the memory of an upload, and says what is in it.
func (b *bench) build(f *form, upload, i int, id format.ObjectID) (data []byte, o format.Object, err error) {
	n := b.o.perObject()
	memory, at := f.objects[upload], 0
	first := b.record(i * n)
	o = format.Object{
		ID: id, Namespace: b.namespace, PayloadBytes: uint32(b.o.BlockBytes), Created: b.now, Used: b.now,
		Runs: []format.Run{{Depth: uint16(min(i*n, math.MaxUint16)), Parent: first.Parent}}, Records: make([]format.Record, n),
	}
	for k := range n {
		r := b.record(i*n + k)
		h := record.Header{
			Store: record.StoreID(id), Slot: uint32(k), Seq: uint64(k) + 1, Namespace: b.namespace, Depth: uint16(min(i*n+k, math.MaxUint16)),
			Key: r.ID.Key, Parent: r.Parent, Proof: r.Proof, Scope: connector.ScopeDigest{1}, KeyScheme: record.KeySchemeTokens,
		}
		payload := b.noise[k*b.o.slotBytes():][:b.o.BlockBytes]
		if f.plain() {
			payload = memory[at+record.HeaderBytes:][:b.o.BlockBytes]
		}
		o.Records[k] = format.Record{Key: r.ID.Key, Start: uint16(at / format.Unit)}
		at += f.build.BuildSlot(memory[at:], &h, payload, elementBytes)
		o.Needs |= uint16(h.Needs)
		o.Codec = max(o.Codec, h.Codec)
	}
	data, err = o.AppendTail(memory[:at], b.bucketID, f.ring)
	return data, o, err
}
