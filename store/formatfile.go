package store

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/kvconn/kvconn/store/internal/disk"
	"github.com/kvconn/kvconn/store/internal/format"
)

// formatNote is the content of the FORMAT file.
type formatNote struct {
	Format  int    `json:"format"`
	StoreID string `json:"store_id"`
}

// readFormat reads the FORMAT file, or makes it for a new store.
func (s *Store) readFormat() (formatNote, error) {
	path := filepath.Join(s.opts.Dir, formatFile)
	b, err := s.opts.fs.ReadFile(path)
	if disk.IsNotExist(err) {
		return s.makeFormat(path)
	}
	if err != nil {
		return formatNote{}, err
	}
	var note formatNote
	if err := json.Unmarshal(b, &note); err != nil {
		return note, fmt.Errorf("read %s: %w", path, err)
	}
	if note.Format > format.Version {
		return note, fmt.Errorf("%s has format %d, this program knows %d: %w", path, note.Format, format.Version, ErrNewerFormat)
	}
	id, err := hex.DecodeString(note.StoreID)
	if err != nil || len(id) != len(s.id) {
		return note, fmt.Errorf("read %s: store_id %q: want %d hexadecimal digits", path, note.StoreID, 2*len(s.id))
	}
	copy(s.id[:], id)
	if note.Format < format.Version {
		// Before anything of the new format is there: a program that knows only the old one
		// must not take it for damage.
		note.Format = format.Version
		return note, s.writeFormat(path, note)
	}
	return note, nil
}

// writeFormat replaces the FORMAT file, durably.
func (s *Store) writeFormat(path string, note formatNote) error {
	b, err := json.MarshalIndent(note, "", "  ")
	if err != nil {
		return err
	}
	return s.opts.fs.WriteFileAtomic(path, append(b, '\n'))
}

func (s *Store) makeFormat(path string) (formatNote, error) {
	if _, err := rand.Read(s.id[:]); err != nil {
		return formatNote{}, err
	}
	if id, ok := s.adoptStoreID(); ok {
		s.id = id
	}
	note := formatNote{
		Format:  format.Version,
		StoreID: hex.EncodeToString(s.id[:]),
	}
	return note, s.writeFormat(path, note)
}

// adoptStoreID finds the identity of a store whose FORMAT file was lost in the header of
// a segment.
func (s *Store) adoptStoreID() (format.StoreID, bool) {
	for _, path := range s.segmentFiles() {
		f, err := s.opts.fs.OpenFile(path, false, false)
		if err != nil {
			continue
		}
		var head format.Segment
		b := disk.AlignedBytes(format.HeaderBytes)
		err = f.ReadVec(b, nil, 0)
		_ = f.Close()
		if err == nil && head.Decode(b) == nil {
			return head.Store, true
		}
	}
	return format.StoreID{}, false
}
