package fetch

import (
	"bytes"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
)

// Whatever an object and the list of it say, a read ends with the bytes that were written or with an error.
func FuzzObject(f *testing.F) {
	const payloadBytes = 5000
	for _, compressed := range []bool{false, true} {
		for _, sealed := range []bool{false, true} {
			f.Add([]byte(nil), uint32(0), uint16(0), uint32(0), uint32(12288), sealed, compressed)
			f.Add([]byte{1, 2, 3}, uint32(160), uint16(1), uint32(8192), uint32(8192), sealed, compressed)
			f.Add([]byte{0xff, 0xff, 0xff, 0xff}, uint32(228), uint16(0), uint32(0), uint32(1<<31), sealed, compressed)
		}
	}
	key := ring(f, 1)
	f.Fuzz(func(t *testing.T, patch []byte, at uint32, ordinal uint16, from, size uint32, sealed, compressed bool) {
		g := &fixed{}
		b := newBench(t, func(_ *bucket.Options, o *Options) {
			o.Bucket, o.Connections = g, 1
			if sealed {
				o.Ring = key
			}
		})
		defer b.Close()
		b.build = builder(t, b.o.Ring, compressed)
		records := b.putChanged(2, payloadBytes, func(object []byte) []byte {
			g.object = slices.Clone(object)
			if at := int(at) % len(object); len(patch) > 0 {
				copy(g.object[at:], patch)
				// A checksum that is right lets the rest of a header be looked at.
				reseal(g.object[:headerBytes], func([]byte) {})
			}
			return object
		})
		p := catalog.Place{Object: records[0].place.Object, Ordinal: ordinal, From: int64(from), Bytes: int64(size)}
		b.places[records[0].ID] = p
		ops := opsOf(records...)
		b.Read(t.Context(), ops, func(op *store.ReadOp) {
			w := op.Owner.(*written)
			if op.Err == nil && !bytes.Equal(op.Payload, w.payload) && (sealed || len(patch) == 0) {
				t.Errorf("op %v: wrong bytes", op.ID.Key)
			}
			if op.Err != nil && !typed(op.Err) {
				t.Errorf("op %v: %v", op.ID.Key, op.Err)
			}
		})
	})
}
