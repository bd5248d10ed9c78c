package steward

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// xxh is the checksum of a JSON file.
func xxh(s string) string { return fmt.Sprintf("%016x", xxh3.HashString(s)) }

// fixHeader makes the checksums of a list right again.
func fixHeader(b []byte) {
	binary.LittleEndian.PutUint64(b[104:], xxh3.Hash(b[:104]))
	sum := xxh3.Hash128(b[:len(b)-16]).Bytes()
	copy(b[len(b)-16:], sum[:])
}
