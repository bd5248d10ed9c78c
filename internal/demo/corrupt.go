package demo

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kvconn/kvconn/connector"
)

// The places in a record's header by which the record is found; the payload follows the header.
const (
	headerBytes = 4096
	headerMagic = "KVCNREC1"
	keyOffset   = 80
)

// flipBit flips one bit in the middle of the payload of the record with the given key,
// in the files of a store that nobody has open. It finds the record by its header (docs/on-disk-format.md).
func flipBit(dir string, key connector.Key) error {
	flipped := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		n, err := flipInFile(path, key)
		flipped += n
		return err
	})
	if err != nil {
		return fmt.Errorf("flip a bit in the store: %w", err)
	}
	if flipped == 0 {
		return fmt.Errorf("flip a bit in the store: no record with key %s", key)
	}
	return nil
}

func flipInFile(path string, key connector.Key) (flipped int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	piece := make([]byte, headerBytes)
	for offset := int64(0); ; offset += headerBytes {
		if _, err := f.ReadAt(piece, offset); err == io.EOF {
			return flipped, nil
		} else if err != nil {
			return flipped, err
		}
		if !bytes.HasPrefix(piece, []byte(headerMagic)) || !bytes.HasPrefix(piece[keyOffset:], key[:]) {
			continue
		}
		at := offset + headerBytes + headerBytes/2
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			return flipped, err
		}
		b[0] ^= 0x10
		if _, err := f.WriteAt(b[:], at); err != nil {
			return flipped, err
		}
		flipped++
	}
}
