package record

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/codec"
	"github.com/kvconn/kvconn/store/seal"
)

// Errors of opening a record that is intact. They wrap [store.ErrUnreadable]: the record is a miss and no
// damage.
var (
	// ErrKey says that a record is sealed with a key that is not in the key file. The error names the
	// key's id.
	ErrKey = fmt.Errorf("sealed with a key that is not in the key file: %w", store.ErrUnreadable)
	// ErrUnsealed says that a record is not sealed where only sealed ones are accepted: anybody may
	// have made it.
	ErrUnsealed = fmt.Errorf("not sealed, and the key file demands it: %w", store.ErrUnreadable)
)

// Errors of payloads, which are damage.
var (
	errPayloadSum = errors.New("payload checksum")
	errForged     = errors.New("payload or header is not what was sealed")
)

// Opener verifies records and returns their payloads. The zero Opener has no key. It is safe for
// concurrent use.
//
// Its errors wrap [store.ErrUnreadable] where the record seems intact and cannot be used here. All others
// mean that it is damaged, moved or forged, or that something else lies there.
type Opener struct {
	// Ring opens what is sealed. With one, records that are not sealed are refused.
	Ring *seal.Ring
	// Codec decodes what is compressed. Without one compressed records are unreadable.
	Codec *codec.Codec
	// SumsOnly accepts all records that are intact, for a check: the checksum of what is stored is
	// verified, and no payload comes out of records that need a key or a codec.
	SumsOnly bool
}

// Begin decodes header, which is HeaderBytes long, into h, and verifies that it is the one wanted and
// that the record can be opened. Then [Header.Stored] bytes are to be read after it.
func (o *Opener) Begin(h *Header, header []byte, w *Want) error {
	if err := h.Decode(header); err != nil {
		return err
	}
	if err := h.Check(w); err != nil {
		return err
	}
	return o.Accept(h)
}

// Accept returns why records with such a header cannot be opened, nil if they can.
func (o *Opener) Accept(h *Header) error {
	if o.SumsOnly {
		return nil
	}
	if h.Needs&NeedsDecoding != 0 && o.Codec == nil {
		return fmt.Errorf("%w: codec %d", ErrNewer, h.Codec)
	}
	if h.Needs&NeedsDecryption == 0 { // whatever else the header says: anybody can write that
		return o.AcceptKey(0, 0)
	}
	return o.AcceptKey(h.Cipher.Algorithm, h.Cipher.KeyID)
}

// AcceptKey is Accept for a record that is sealed by an algorithm, 0 for none, with a key.
func (o *Opener) AcceptKey(algorithm uint8, keyID uint32) error {
	switch {
	case o.SumsOnly:
		return nil
	case algorithm == 0 && o.Ring != nil:
		return ErrUnsealed
	case algorithm == 0:
		return nil
	case algorithm != seal.Algorithm:
		return fmt.Errorf("%w: algorithm %d", ErrNewer, algorithm)
	case !o.Ring.Has(keyID):
		return fmt.Errorf("%w: key %s", ErrKey, seal.KeyName(keyID))
	}
	return nil
}

// Open verifies what is stored, and fills the payload with what it holds. h is what [Opener.Begin]
// made of header. The payload has the length that h says, and stored is [Header.Stored] bytes long. The two must
// be the same memory if h needs nothing, may be if it is not compressed, and else must not overlap. What is
// stored may be changed, and a capacity of [seal.TagBytes] more spares a copy. For a moment Open changes bytes
// of header. After an error the payload is undefined; of a sealed record it has nothing that is not authentic.
func (o *Opener) Open(h *Header, header, payload, stored []byte) error {
	if len(stored) != h.Stored() || len(payload) != int(h.PayloadBytes) {
		return fmt.Errorf("%w: %d bytes stored of %d", ErrBad, len(stored), len(payload))
	}
	sealed, compressed := h.Needs&NeedsDecryption != 0, h.Needs&NeedsDecoding != 0
	sumOnly := o.SumsOnly && (sealed && !o.Ring.Has(h.Cipher.KeyID) || compressed && o.Codec == nil)
	if (!sealed || sumOnly) && h.PayloadSum != PayloadSum(stored) {
		return errPayloadSum
	}
	switch {
	case sumOnly:
		return nil
	case sealed && !compressed:
		return o.unseal(h, header, payload[:0], stored)
	case sealed:
		if err := o.unseal(h, header, stored[:0], stored); err != nil {
			return err
		}
	}
	if compressed {
		return o.Codec.Decode(payload, stored)
	}
	return nil
}

// unseal decrypts what is stored into dst. Additional data is the header without the fields that follow
// from what is encrypted.
func (o *Opener) unseal(h *Header, header, dst, stored []byte) error {
	var kept [HeaderBytes - offHeaderSum]byte
	clear(header[offSum : offSum+8])
	clear(header[offTag : offTag+len(h.Cipher.Tag)])
	copy(kept[:], header[offHeaderSum:])
	clear(header[offHeaderSum:])
	nonce, tag := h.Cipher.Nonce, h.Cipher.Tag // copies escape, and not h
	_, err := o.Ring.Open(dst, stored, header, &nonce, &tag, h.Cipher.KeyID)
	binary.LittleEndian.PutUint64(header[offSum:], h.PayloadSum)
	copy(header[offTag:], h.Cipher.Tag[:])
	copy(header[offHeaderSum:], kept[:])
	if err != nil {
		return fmt.Errorf("%w: %w", errForged, err)
	}
	return nil
}
