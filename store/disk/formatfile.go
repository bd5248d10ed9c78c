package disk

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

// formatNote is the content of the FORMAT file.
type formatNote struct {
	Format  int    `json:"format"`
	StoreID string `json:"store_id"`
	// Sum is the XXH3-64 of the file up to the name of this field, which comes last in every
	// format: it tells a newer format from a damaged file.
	Sum string `json:"sum"`
}

// sumField begins the last line of a FORMAT file.
const sumField = `"sum"`

// encode returns the file's content.
func (n formatNote) encode() ([]byte, error) {
	b, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return nil, err
	}
	n.Sum = fmt.Sprintf("%016x", xxh3.Hash(b[:bytes.LastIndex(b, []byte(sumField))]))
	b, err = json.MarshalIndent(n, "", "  ")
	return append(b, '\n'), err
}

// decode reads a FORMAT file. intact says that its checksum was right: a file of a program
// that wrote none is not.
func (n *formatNote) decode(b []byte) (intact bool, err error) {
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

func (n *formatNote) id() (id format.StoreID, err error) {
	b, err := hex.DecodeString(n.StoreID)
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("store_id %q: want %d hexadecimal digits", n.StoreID, 2*len(id))
	}
	return format.StoreID(b), nil
}

// formatState is what became of the FORMAT file.
type formatState struct {
	note   formatNote
	id     format.StoreID
	usable bool  // id is to be believed
	intact bool  // and so is everything else
	lost   error // why it is not usable, nil where there is no file
	unread bool  // the disk did not give it
}

// readFormat reads the FORMAT file. The only error is [ErrNewerFormat], from a file that
// is intact: everything else that may be wrong with it can be put right.
func (s *Store) readFormat() (st formatState, err error) {
	path := filepath.Join(s.opts.Dir, formatFile)
	var b []byte
	err = fsio.Again(func() (err error) {
		b, err = s.opts.fs.ReadFile(path)
		if errors.Is(err, unix.EISDIR) {
			s.setAside(path)
			st.lost = err
			return nil
		}
		return err
	})
	switch {
	case fsio.IsNotExist(err):
		return st, nil
	case err != nil:
		st.lost, st.unread = err, true
		return st, nil
	case st.lost != nil:
		return st, nil
	}
	if st.intact, st.lost = st.note.decode(b); st.lost != nil {
		return st, nil
	}
	if st.note.Format > format.Version && st.intact {
		return st, fmt.Errorf("%s has format %d, this program knows %d: %w", path, st.note.Format, format.Version, ErrNewerFormat)
	}
	if st.id, st.lost = st.note.id(); st.lost == nil {
		st.usable = st.note.Format <= format.Version
	}
	return st, nil
}

// identify finds out which store this is: what FORMAT says, else what most segments say,
// else the stamp. A new store gets a new identity. A store whose files cannot be read is
// not taken for new: with another identity it would know none of its records. FORMAT is
// written again where it was not intact.
func (s *Store) identify(st *formatState, o *opening) error {
	files, stamped := o.files, o.stamp.Store
	owner, owned := majority(files)
	switch {
	case st.intact:
		s.id = st.id
		if st.note.Format == format.Version {
			return nil
		}
	case owned:
		s.id = owner
	case st.usable:
		s.id = st.id
	case stamped != (format.StoreID{}):
		s.id = stamped
	case st.unread || o.stampUnread != nil || slices.ContainsFunc(files, (*segmentFile).untold):
		return fmt.Errorf("find out which store this is: %w", errors.Join(st.lost, o.stampUnread, firstUntold(files)))
	default:
		if _, err := rand.Read(s.id[:]); err != nil {
			return err
		}
	}
	fresh := len(files) == 0 && st.lost == nil && stamped == (format.StoreID{})
	switch {
	case st.usable && s.id == st.id, fresh:
	case st.lost != nil:
		s.report.Note("%s was damaged (%v): written again", formatFile, st.lost)
	default:
		s.report.Note("%s was lost: written again", formatFile)
	}
	st.note.Format, st.note.StoreID, st.note.Sum = format.Version, hex.EncodeToString(s.id[:]), ""
	b, err := st.note.encode()
	if err == nil {
		err = s.opts.fs.WriteFileAtomic(filepath.Join(s.opts.Dir, formatFile), b)
	}
	if err != nil && !fresh {
		s.report.Note("%s cannot be written (%v)", formatFile, err)
		return nil
	}
	return err
}

// firstUntold is why the first segment that the disk does not tell of cannot be read, or nil.
func firstUntold(files []*segmentFile) error {
	for _, f := range files {
		if f.untold() {
			return errors.Join(f.openErr, f.readErr)
		}
	}
	return nil
}

// majority returns the store that most intact segment headers name.
func majority(files []*segmentFile) (id format.StoreID, ok bool) {
	votes := make(map[format.StoreID]int)
	for _, f := range files {
		if f.headErr == nil {
			votes[f.head.Store]++
		}
	}
	for other, n := range votes {
		if n > votes[id] || !ok {
			id, ok = other, true
		}
	}
	return id, ok
}
