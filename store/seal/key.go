package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Key is a secret key. It never prints.
type Key [KeyBytes]byte

// hidden is what stands for a key wherever one would be printed.
const hidden = "(key)"

// Format prints that there is a key, and not which.
func (Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalText does the same for what is encoded as text or JSON.
func (Key) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// ID names the key without giving it away: the first 4 bytes, in big-endian, of the SHA-256 of a
// label and the key.
func (k *Key) ID() uint32 {
	sum := sha256.Sum256(append([]byte("kvconn/key-id/1"), k[:]...))
	return binary.BigEndian.Uint32(sum[:])
}

// check reports an error for keys that nobody drew at random, and for the one of 4 billion whose id
// stands for none.
func (k *Key) check() error {
	same := true
	for _, b := range k {
		same = same && b == k[0]
	}
	if same {
		return errors.New("it is not random: all its bytes are equal")
	}
	if k.ID() == 0 {
		return errors.New("its id is 0, which stands for no key: make another")
	}
	return nil
}

// subkeyNonceBytes is how much of a nonce goes into the derived key. The rest is the nonce of GCM.
const subkeyNonceBytes = 12

// key is a key that is ready for use.
type key struct {
	id    uint32
	block cipher.Block
	// mask is K1, the subkey of AES-CMAC for messages of whole blocks.
	mask [aes.BlockSize]byte
}

func newKey(secret *Key) (k key, err error) {
	if err := secret.check(); err != nil {
		return k, err
	}
	return prepare(secret)
}

// prepare computes what is the same for all messages of a key, and tries the cipher.
func prepare(secret *Key) (k key, err error) {
	k.id = secret.ID()
	if k.block, err = aes.NewCipher(secret[:]); err != nil {
		return k, err
	}
	k.block.Encrypt(k.mask[:], k.mask[:])
	carry := k.mask[0] >> 7
	for i := range len(k.mask) - 1 {
		k.mask[i] = k.mask[i]<<1 | k.mask[i+1]>>7
	}
	k.mask[len(k.mask)-1] = k.mask[len(k.mask)-1]<<1 ^ carry*0b1000_0111
	_, err = k.gcm(new([NonceBytes]byte))
	return k, err
}

// gcm derives the key of one message from the first half of its nonce, and returns the cipher with
// that key. The nonce of the cipher is the other half.
func (k *key) gcm(n *[NonceBytes]byte) (cipher.AEAD, error) {
	subkey := make([]byte, KeyBytes)
	for i := range 2 {
		m := subkey[aes.BlockSize*i : aes.BlockSize*(i+1)]
		m[1], m[2] = byte(i+1), 'X'
		copy(m[4:], n[:subkeyNonceBytes])
		for j := range m {
			m[j] ^= k.mask[j]
		}
		k.block.Encrypt(m, m)
	}
	block, err := aes.NewCipher(subkey)
	clear(subkey)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
