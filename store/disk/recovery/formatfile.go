package recovery

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/record"
)

// formatState is what became of the FORMAT file.
type formatState struct {
	note   format.Note
	id     record.StoreID
	usable bool  // id is to be believed
	intact bool  // and so is everything else
	lost   error // why it is not usable, nil where there is no file
	unread bool  // the disk did not give it
}

// readFormat reads the FORMAT file. The only error is [ErrNewerFormat], from a file that
// is intact: everything else that may be wrong with it can be put right.
func (s *State) readFormat() (st formatState, err error) {
	path := filepath.Join(s.opts.Dir, FormatFile)
	var b []byte
	err = fsio.Again(func() (err error) {
		b, err = s.opts.FS.ReadFile(path)
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
	if st.intact, st.lost = st.note.Decode(b); st.lost != nil {
		return st, nil
	}
	if st.note.Format > record.Version && st.intact {
		return st, fmt.Errorf("%s has format %d, this program knows %d: %w", path, st.note.Format, record.Version, ErrNewerFormat)
	}
	if st.id, st.lost = st.note.ID(); st.lost == nil {
		st.usable = st.note.Format <= record.Version
	}
	return st, nil
}

// identify finds out which store this is: what FORMAT says, else what most segments say,
// else the stamp. A new store gets a new identity. A store whose files cannot be read is
// not taken for new: with another identity it would know none of its records. FORMAT is
// written again where it was not intact.
func (s *State) identify(st *formatState, o *opening) error {
	files, stamped := o.files, o.stamp.Store
	owner, owned := majority(files)
	switch {
	case st.intact:
		s.ID = st.id
		if st.note.Format == record.Version {
			return nil
		}
	case owned:
		s.ID = owner
	case st.usable:
		s.ID = st.id
	case stamped != (record.StoreID{}):
		s.ID = stamped
	case st.unread || o.stampUnread != nil || slices.ContainsFunc(files, (*segmentFile).untold):
		return fmt.Errorf("find out which store this is: %w", errors.Join(st.lost, o.stampUnread, firstUntold(files)))
	default:
		if _, err := rand.Read(s.ID[:]); err != nil {
			return err
		}
	}
	fresh := len(files) == 0 && st.lost == nil && stamped == (record.StoreID{})
	switch {
	case st.usable && s.ID == st.id, fresh:
	case st.lost != nil:
		s.opts.Report.Note("%s was damaged (%v): written again", FormatFile, st.lost)
	default:
		s.opts.Report.Note("%s was lost: written again", FormatFile)
	}
	st.note.Format, st.note.StoreID, st.note.Sum = record.Version, hex.EncodeToString(s.ID[:]), ""
	b, err := st.note.Encode()
	if err == nil {
		err = s.opts.FS.WriteFileAtomic(filepath.Join(s.opts.Dir, FormatFile), b)
	}
	if err != nil && !fresh {
		s.opts.Report.Note("%s cannot be written (%v)", FormatFile, err)
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
func majority(files []*segmentFile) (id record.StoreID, ok bool) {
	votes := make(map[record.StoreID]int)
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
