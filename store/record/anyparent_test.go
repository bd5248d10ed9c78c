package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// openFor returns the payload of a slot for whoever wants that record, as tiers do.
func openFor(slot []byte, s *built, r *store.Record) ([]byte, error) {
	var h Header
	header := bytes.Clone(slot[:HeaderBytes])
	if err := s.opener.Begin(&h, header, &s.want); err != nil {
		return nil, err
	}
	if err := h.CheckPrefix(r); err != nil {
		return nil, err
	}
	return open(slot, &s.opener, &s.want)
}

// anyParent is the record of a slot, for a read whose caller does not know its parent.
func (s *built) anyParent() store.Record {
	return store.Record{ID: s.want.ID, Proof: s.header.Proof, AnyParent: true}
}

// A record with another parent than the one that is wanted opens with any parent, and only then.
func TestRecordsOpenWithAnyParentByTheirProof(t *testing.T) {
	for _, w := range ways {
		s := build(t, w.sealed, w.compressed, smooth(4500))
		flipped := func(k connector.Key, bit int) connector.Key {
			k[bit/8] ^= 1 << (bit % 8)
			return k
		}
		for name, parent := range map[string]connector.Key{
			"the root": {}, "the first bit": flipped(s.header.Parent, 0), "the last bit": flipped(s.header.Parent, 8*connector.KeySize-1),
		} {
			r := s.anyParent()
			r.Parent, r.AnyParent = parent, false
			if _, err := openFor(s.slot, s, &r); !errors.Is(err, store.ErrMismatch) || r.Parent != parent {
				t.Errorf("%s: opens with a parent that differs in %s: %v", w.name, name, err)
			}
			r.AnyParent = true
			if got, err := openFor(s.slot, s, &r); err != nil || !bytes.Equal(got, s.payload) || r.Parent != s.header.Parent {
				t.Errorf("%s: %v with any parent, which is %v", w.name, err, r.Parent)
			}
			// Whoever passes the record on may say the parent now.
			r.AnyParent = false
			if _, err := openFor(s.slot, s, &r); err != nil {
				t.Errorf("%s: %v with the parent that was found", w.name, err)
			}
		}
		for bit := range 8 * connector.ProofSize {
			r := s.anyParent()
			r.Proof[bit/8] ^= 1 << (bit % 8)
			if _, err := openFor(s.slot, s, &r); !errors.Is(err, store.ErrMismatch) || r.Parent != (connector.Key{}) {
				t.Fatalf("%s: bit %d of the proof: %v, parent %v", w.name, bit, err, r.Parent)
			}
		}
	}
}

// All bits of what a header says are flipped, and some of the rest.
func TestFlippedBitsAreFoundWithAnyParent(t *testing.T) {
	for _, w := range ways {
		s := build(t, w.sealed, w.compressed, smooth(2200))
		for bit, step := 0, 1; bit < 8*(HeaderBytes+s.header.Stored()); bit += step {
			if bit >= 8*(offCodec+1) {
				step = 37
			}
			s.slot[bit/8] ^= 1 << (bit % 8)
			r := s.anyParent()
			if _, err := openFor(s.slot, s, &r); err == nil || errors.Is(err, store.ErrUnreadable) {
				t.Fatalf("%s: bit %d: %v", w.name, bit, err)
			}
			s.slot[bit/8] ^= 1 << (bit % 8)
		}
		r := s.anyParent()
		if _, err := openFor(s.slot, s, &r); err != nil {
			t.Errorf("%s: %v", w.name, err)
		}
	}
}

// Whoever has no key cannot change the parent that a sealed record is found to have.
func TestParentsOfSealedRecordsCannotBeForged(t *testing.T) {
	for _, w := range ways {
		s := build(t, w.sealed, w.compressed, smooth(4500))
		s.slot[offParent+3] ^= 0x10
		binary.LittleEndian.PutUint64(s.slot[offSum:], PayloadSum(s.slot[HeaderBytes:HeaderBytes+s.header.Stored()]))
		PutSum(s.slot[:HeaderBytes])
		r := s.anyParent()
		if _, err := openFor(s.slot, s, &r); w.sealed != (err != nil) || w.sealed && !errors.Is(err, errForged) {
			t.Errorf("%s: %v", w.name, err)
		}
	}
}
