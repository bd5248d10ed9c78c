package pins

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

// The file of pins is one line with a checksum and, after it, the pins as JSON.

// header begins the file; the SHA-256 of what comes after the first line follows it.
const header = "kvconn pins 1 "

var errDamaged = errors.New("the checksum is wrong")

// filed is a pin in the file.
type filed struct {
	ID        string            `json:"id"`
	Namespace string            `json:"namespace"`
	Shards    []connector.Shard `json:"shards,omitempty"`
	Keys      []byte            `json:"keys,omitempty"` // one after the other
	UpTo      uint64            `json:"up_to"`
	Records   int64             `json:"records"`
	Bytes     int64             `json:"bytes"`
	Made      time.Time         `json:"made"`
	Until     time.Time         `json:"until"`
}

func (p *Pin) filed() filed {
	f := filed{ID: p.ID, Namespace: p.Namespace.String(), Shards: p.Shards, UpTo: p.UpTo, Records: p.Records, Bytes: p.Bytes, Made: p.Made, Until: p.Until}
	for i := range p.Keys {
		f.Keys = append(f.Keys, p.Keys[i][:]...)
	}
	return f
}

func (f *filed) pin() (p Pin, err error) {
	digest, err := hex.DecodeString(f.Namespace)
	if err != nil || len(digest) != len(p.Namespace) || len(f.Keys)%connector.KeySize != 0 {
		return p, fmt.Errorf("pin %q is malformed", f.ID)
	}
	p = Pin{ID: f.ID, Namespace: connector.NamespaceDigest(digest), Shards: f.Shards, UpTo: f.UpTo, Records: f.Records, Bytes: f.Bytes, Made: f.Made, Until: f.Until}
	for keys := f.Keys; len(keys) > 0; keys = keys[connector.KeySize:] {
		p.Keys = append(p.Keys, connector.Key(keys[:connector.KeySize]))
	}
	return p, nil
}

// encode returns the bytes of the file.
func encode(list []Pin) ([]byte, error) {
	filed := make([]filed, len(list))
	for i := range list {
		filed[i] = list[i].filed()
	}
	body, err := json.Marshal(filed)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	return append(fmt.Appendf(nil, "%s%x\n", header, sum), body...), nil
}

// decode returns the pins of a file.
func decode(b []byte) (list []Pin, err error) {
	line, body, _ := bytes.Cut(b, []byte("\n"))
	text, ours := bytes.CutPrefix(line, []byte(header))
	sum := sha256.Sum256(body)
	if want, err := hex.DecodeString(string(text)); !ours || err != nil || !bytes.Equal(want, sum[:]) {
		return nil, errDamaged
	}
	var all []filed
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, err
	}
	for i := range all {
		p, err := all[i].pin()
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, check(list)
}

// read returns the pins of a file; none if it is not there.
func read(f fsio.FS, path string) ([]Pin, error) {
	entries, err := f.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(path) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if info.Size() > maxFileBytes {
			return nil, fmt.Errorf("%d bytes, at most %d", info.Size(), maxFileBytes)
		}
		b, err := f.ReadFile(path)
		if err != nil {
			return nil, err
		}
		return decode(b)
	}
	return nil, nil
}
