package format

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/store/record"
)

// Note is the content of a FORMAT file.
type Note struct {
	// Format is the version of the format, StoreID the identity in hexadecimal digits.
	Format  int    `json:"format"`
	StoreID string `json:"store_id"`
	// Sum is the XXH3-64 of the file up to the name of this field, which comes last in every
	// format: it tells a newer format from a damaged file.
	Sum string `json:"sum"`
}

// sumField begins the last line of a FORMAT file.
const sumField = `"sum"`

// Encode returns the file's content.
func (n Note) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return nil, err
	}
	n.Sum = fmt.Sprintf("%016x", xxh3.Hash(b[:bytes.LastIndex(b, []byte(sumField))]))
	b, err = json.MarshalIndent(n, "", "  ")
	return append(b, '\n'), err
}

// Decode reads a FORMAT file. intact says that its checksum was right: a file of a program
// that wrote none is not.
func (n *Note) Decode(b []byte) (intact bool, err error) {
	if err := json.Unmarshal(b, n); err != nil {
		return false, err
	}
	at := bytes.LastIndex(b, []byte(sumField))
	if at < 0 {
		return false, nil
	}
	if n.Sum != fmt.Sprintf("%016x", xxh3.Hash(b[:at])) {
		return false, errors.New("checksum is wrong")
	}
	return true, nil
}

// ID is the store's identity.
func (n *Note) ID() (id record.StoreID, err error) {
	b, err := hex.DecodeString(n.StoreID)
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("store_id %q: want %d hexadecimal digits", n.StoreID, 2*len(id))
	}
	return record.StoreID(b), nil
}
