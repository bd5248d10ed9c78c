package fetch

import (
	"slices"
	"testing"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/codec"
	objects "github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

// ring makes a ring of keys that differ by their numbers.
func ring(t testing.TB, numbers ...byte) *seal.Ring {
	t.Helper()
	var keys []seal.Key
	for _, n := range numbers {
		var k seal.Key
		for i := range k {
			k[i] = byte(i)*7 + n*31
		}
		keys = append(keys, k)
	}
	r, err := seal.New(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// builder makes records that are sealed, if there is a ring, and compressed.
func builder(t testing.TB, r *seal.Ring, compressed bool) *record.Builder {
	t.Helper()
	b := &record.Builder{Ring: r}
	if compressed {
		c, err := codec.New(1)
		if err != nil {
			t.Fatal(err)
		}
		b.Chooser = codec.NewChooser(c)
	}
	return b
}

func withRing(r *seal.Ring) func(*bucket.Options, *Options) {
	return func(_ *bucket.Options, o *Options) { o.Ring = r }
}

// Each kind of record comes back; what is compressed takes fewer bytes.
func TestKindsOfRecords(t *testing.T) {
	for _, c := range []struct {
		name       string
		ring       *seal.Ring
		compressed bool
	}{
		{"sealed", ring(t, 1), false}, {"compressed", nil, true}, {"compressed and sealed", ring(t, 1), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, withRing(c.ring), func(t *testing.T, b *bench) {
				b.build = builder(t, c.ring, c.compressed)
				records := b.put(24, large)
				var bytes int64
				for _, w := range records {
					bytes += w.place.Bytes
				}
				if whole := 24 * objects.SlotBytes(large); c.compressed && bytes > whole*3/4 || !c.compressed && bytes != whole {
					t.Errorf("%d bytes of %d", bytes, whole)
				}
				ops := opsOf(records...)
				b.read(t.Context(), ops...)
				want(t, nil, ops...)
				if s := b.Stats(); s.ReadBytes != 24*large {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// A bit that is flipped anywhere makes a record of any kind corrupt.
func TestFlippedBitOfSealedRecords(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		r := ring(t, 1)
		for at := range 30 {
			inBubble(t, withRing(r), func(t *testing.T, b *bench) {
				b.build = builder(t, r, compressed)
				records := b.putChanged(3, small, func(object []byte) []byte {
					object[at*400] ^= 1 << (at % 8) // of the first record, whatever it takes
					return object
				})
				if int64(at*400) >= records[0].place.Bytes-store.BufferAlign {
					return // padding, perhaps
				}
				ops := opsOf(records...)
				b.read(t.Context(), ops...)
				want(t, store.ErrCorrupt, ops[0])
				want(t, nil, ops[1:]...)
				if why := b.whyLost(records[0].place.Object); why != objects.CauseDamaged {
					t.Errorf("byte %d: reported as %v", at*400, why)
				}
			})
		}
	}
}

// Sealed records that are moved within their object, though their bytes are right, and headers that somebody
// without the key has changed.
func TestForgedRecords(t *testing.T) {
	r := ring(t, 1)
	slot := int(objects.SlotBytes(small))
	inBubble(t, withRing(r), func(t *testing.T, b *bench) {
		b.build = builder(t, r, false)
		moved := opsOf(b.putChanged(2, small, func(object []byte) []byte {
			return append(slices.Clone(object[slot:]), object[:slot]...)
		})...)
		patched := b.putChanged(2, small, func(object []byte) []byte {
			var h [2]record.Header
			for i := range h {
				if err := h[i].Decode(object[i*slot : i*slot+headerBytes]); err != nil {
					t.Fatal(err)
				}
			}
			for i := range h { // each says that it is the other
				place := h[i]
				h[i].Slot, h[i].Seq = h[1-i].Slot, h[1-i].Seq
				h[i].Encode(object[(1-i)*slot : (1-i)*slot+headerBytes])
				h[i] = place
			}
			for i := range small {
				object[headerBytes+i], object[slot+headerBytes+i] = object[slot+headerBytes+i], object[headerBytes+i]
			}
			return object
		})
		b.mu.Lock()
		for i, w := range patched { // and so does the catalog
			p := w.place
			p.Ordinal, p.From = uint16(1-i), int64((1-i)*slot)
			b.places[w.ID] = p
		}
		b.mu.Unlock()
		ops := append(moved, opsOf(patched...)...)
		b.read(t.Context(), ops...)
		want(t, store.ErrCorrupt, ops...)
	})
}

// What cannot be opened here is a miss, counted, and not reported: another node may read it.
func TestOtherKeys(t *testing.T) {
	for _, c := range []struct {
		name        string
		write, read *seal.Ring
		cause       error
	}{
		{"another key", ring(t, 1), ring(t, 2), store.ErrUnreadable},
		{"no key", ring(t, 1), nil, store.ErrUnreadable},
		{"not sealed", nil, ring(t, 1), store.ErrUnreadable},
		{"the second key", ring(t, 1), ring(t, 2, 1), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, withRing(c.read), func(t *testing.T, b *bench) {
				b.build = builder(t, c.write, false)
				records := b.put(4, small)
				ops := opsOf(records...)
				before := b.server.Counts().Get
				b.read(t.Context(), ops...)
				want(t, c.cause, ops...)
				if b.whyLost(records[0].place.Object) != 0 {
					t.Error("the object was reported")
				}
				if s := b.Stats(); c.cause != nil && (s.Unsealed != 4 || s.Failed["unreadable"] != 4) {
					t.Errorf("stats %+v", s)
				}
				if n := b.server.Counts().Get - before; n != 1 {
					t.Errorf("%d GETs", n)
				}
			})
		})
	}
}
