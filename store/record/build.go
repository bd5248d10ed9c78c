package record

import (
	"sync"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/codec"
	"github.com/kvconn/kvconn/store/seal"
)

// Builder makes of a payload what is stored of it, and completes its header. It is safe for
// concurrent use, and must not be copied after its first use.
type Builder struct {
	// Ring seals the payloads. Without one they are stored in the clear.
	Ring *seal.Ring
	// Chooser compresses them where that pays. It may be nil.
	Chooser *codec.Chooser

	scratch sync.Pool // of *[]byte, for what is compressed
}

// Build returns what is stored of a payload whose elements have width bytes (see [codec.Width]; 0
// where they are not known): the payload itself if it is neither compressed nor sealed, else as
// many bytes as that takes, in dst. It sets PayloadBytes, PayloadSum, Needs, Cipher, StoredBytes and
// Codec of h, and encodes h into header, which is HeaderBytes long. The other fields must be set.
//
// dst has the length of the payload, or more. It may begin where the payload does, and else must not
// overlap it. A capacity of [seal.TagBytes] more spares a copy: these bytes are used for a moment, and put
// back. The payload is not changed, unless dst begins there.
func (b *Builder) Build(h *Header, header, dst, payload []byte, width int) (stored []byte) {
	h.PayloadBytes = uint32(len(payload))
	h.PayloadSum, h.Needs, h.Cipher, h.StoredBytes, h.Codec = 0, 0, Cipher{}, 0, 0
	stored = payload
	if b.Chooser != nil {
		scratch := b.room(len(payload) + seal.TagBytes)
		defer b.scratch.Put(scratch)
		if encoded, smaller := b.Chooser.Encode((*scratch)[:0], payload, width, h.Namespace, h.Shard); smaller {
			stored, h.Codec = encoded, codec.Planes
			h.Needs |= NeedsDecoding
		}
	}
	if b.Ring != nil {
		h.Needs |= NeedsDecryption
	}
	if h.Needs != 0 {
		h.StoredBytes = uint32(len(stored))
	}
	switch {
	case b.Ring != nil:
		stored = b.seal(h, header, dst, stored)
	case h.Codec != 0:
		stored = append(dst[:0], stored...)
	}
	h.PayloadSum = PayloadSum(stored)
	h.Encode(header)
	return stored
}

// seal encrypts what is stored. Additional data is the header without the fields that follow from what
// is encrypted.
func (b *Builder) seal(h *Header, header, dst, plain []byte) []byte {
	nonce := seal.NewNonce()
	h.Cipher.Algorithm, h.Cipher.KeyID, h.Cipher.Nonce = seal.Algorithm, b.Ring.KeyID(), nonce
	h.encode(header)
	sealed, tag, _ := b.Ring.Seal(dst[:0], plain, header, &nonce)
	h.Cipher.Tag = tag
	return sealed
}

// room returns a buffer of some capacity, to be put back.
func (b *Builder) room(bytes int) *[]byte {
	s, _ := b.scratch.Get().(*[]byte)
	if s == nil || cap(*s) < bytes {
		s = new([]byte)
		*s = make([]byte, 0, bytes)
	}
	return s
}

// BuildSlot builds a whole slot: header, what is stored, zeros up to a multiple of [HeaderBytes]. It
// returns its size in bytes. slot has room for the header and the padded payload, which may lie there
// already, after the header; see [Builder.Build].
func (b *Builder) BuildSlot(slot []byte, h *Header, payload []byte, width int) int {
	body := slot[HeaderBytes:]
	stored := b.Build(h, slot[:HeaderBytes], body, payload, width)
	if len(stored) > 0 && &stored[0] != &body[0] {
		copy(body, stored)
	}
	end := store.PayloadBufferSize(len(stored))
	clear(body[len(stored):end])
	return HeaderBytes + end
}
