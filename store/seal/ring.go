// Package seal encrypts and authenticates what a tier stores, with the keys of a key file.
//
// The cipher is XAES-256-GCM (https://c2sp.org/XAES-256-GCM): AES-256-GCM of the standard library,
// with a key that is derived for each message from the first half of a nonce of 24 bytes. Nonces
// of that length may be drawn at random for 2^80 messages; with the 12 bytes of plain GCM, the
// nodes of a large deployment would pass what is safe within weeks.
package seal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Algorithm is the number of XAES-256-GCM in record headers.
const Algorithm = 1

// Sizes in bytes.
const (
	KeyBytes   = 32
	NonceBytes = 24
	TagBytes   = 16
)

// Errors of [Ring.Open]. Match them with [errors.Is].
var (
	// ErrUnknownKey says that a message was sealed with a key that is not in the key file. The
	// error names the key's id.
	ErrUnknownKey = errors.New("seal: the key is not in the key file")
	// ErrForged says that a message, its additional data, nonce or tag is not what was sealed
	// with this key: it was damaged, moved, or made by somebody without the key.
	ErrForged = errors.New("seal: not what was sealed with the key")
)

// Ring holds the keys of a key file. The first seals, and all of them open. It is safe for
// concurrent use. A nil Ring has no key and opens nothing. Printing a Ring shows the ids of its
// keys and no key.
type Ring struct {
	keys []key
}

// New returns a ring of keys. It refuses the same key twice, two keys with one id, and keys that
// were not drawn at random.
func New(keys ...Key) (*Ring, error) {
	if len(keys) == 0 {
		return nil, errors.New("seal: no keys")
	}
	r := &Ring{keys: make([]key, 0, len(keys))}
	for i := range keys {
		k, err := newKey(&keys[i])
		if err != nil {
			return nil, fmt.Errorf("seal: key %d: %w", i+1, err)
		}
		if at := r.index(k.id); at >= 0 {
			return nil, fmt.Errorf("seal: keys %d and %d have one id, %s: each key must be in the file once", at+1, i+1, KeyName(k.id))
		}
		r.keys = append(r.keys, k)
	}
	return r, nil
}

// NewNonce draws a nonce. Each message needs its own.
func NewNonce() (n [NonceBytes]byte) {
	_, _ = rand.Read(n[:]) // it never fails
	return n
}

// Seal encrypts plain and appends it to dst: sealed is dst with as many bytes more as plain has.
// The tag authenticates them together with aad, and n must be a nonce that was never used before.
// plain may lie exactly where the sealed bytes go, and else must not overlap them.
//
// For a moment Seal uses the [TagBytes] bytes after the sealed ones, if the capacity of dst reaches
// that far, and puts back what was there; otherwise it allocates and copies dst.
func (r *Ring) Seal(dst, plain, aad []byte, n *[NonceBytes]byte) (sealed []byte, tag [TagBytes]byte, keyID uint32) {
	k := &r.keys[0]
	gcm, err := k.gcm(n)
	if err != nil {
		panic(fmt.Sprintf("seal: %v", err)) // newKey tried it
	}
	end := len(dst) + len(plain)
	after, kept := room(dst, end)
	out := gcm.Seal(dst, n[subkeyNonceBytes:], plain, aad)
	copy(tag[:], out[end:])
	copy(after, kept[:])
	return out[:end], tag, k.id
}

// Open decrypts sealed and appends it to dst, once it has verified that sealed, aad, n and tag are
// what [Ring.Seal] took and made with the key keyID. It returns [ErrUnknownKey], or [ErrForged] after
// it has cleared what it wrote. dst may be sealed[:0], and else must not overlap sealed and the
// [TagBytes] bytes after it.
//
// For a moment Open uses these bytes, if the capacity of sealed reaches that far, and puts back
// what was there; otherwise it allocates and copies sealed.
func (r *Ring) Open(dst, sealed, aad []byte, n *[NonceBytes]byte, tag *[TagBytes]byte, keyID uint32) ([]byte, error) {
	at := r.index(keyID)
	if at < 0 {
		return nil, fmt.Errorf("%w: key %s", ErrUnknownKey, KeyName(keyID))
	}
	gcm, err := r.keys[at].gcm(n)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	end := len(sealed)
	after, kept := room(sealed, end)
	both := append(sealed, tag[:]...)
	out, err := gcm.Open(dst, n[subkeyNonceBytes:], both, aad)
	copy(after, kept[:])
	if err != nil {
		return nil, ErrForged
	}
	return out, nil
}

// room returns the bytes from end on in which a tag finds room within the capacity of b, nil if it
// does not, and a copy of them.
func room(b []byte, end int) (after []byte, kept [TagBytes]byte) {
	if cap(b)-end >= TagBytes {
		after = b[end : end+TagBytes]
		copy(kept[:], after)
	}
	return after, kept
}

// KeyID is the id of the key that seals.
func (r *Ring) KeyID() uint32 { return r.keys[0].id }

// KeyIDs are the ids of all keys, that of the key that seals first.
func (r *Ring) KeyIDs() []uint32 {
	if r == nil {
		return nil
	}
	ids := make([]uint32, len(r.keys))
	for i := range r.keys {
		ids[i] = r.keys[i].id
	}
	return ids
}

// Has reports whether the ring opens what the key keyID sealed.
func (r *Ring) Has(keyID uint32) bool { return r.index(keyID) >= 0 }

// index is the place of a key in the ring, -1 if it is not there.
func (r *Ring) index(keyID uint32) int {
	if r == nil {
		return -1
	}
	for i := range r.keys {
		if r.keys[i].id == keyID {
			return i
		}
	}
	return -1
}

// String names the keys by their ids.
func (r *Ring) String() string {
	names := make([]string, 0, 2)
	for _, id := range r.KeyIDs() {
		names = append(names, KeyName(id))
	}
	return "keys [" + strings.Join(names, " ") + "]"
}

// Format prints the same whatever the verb, since others would print what is in the ring.
func (r *Ring) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// KeyName is the id of a key as messages, documents and metrics show it.
func KeyName(keyID uint32) string { return fmt.Sprintf("%08x", keyID) }
