package format

import (
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/seal"
)

// List is what all files with facts about the bucket are: lists of writers, the log, its parts, the
// footers of data objects and the manifests of namespaces. What it says is a hint: whoever reads a
// record verifies it.
type List struct {
	// Name is that of the object that holds the list. It says what kind of list this is.
	Name   Name
	Bucket BucketID
	// Writer is who wrote the list: of [KindIn] and footers the writer in the name.
	Writer WriterID
	// Previous is, in the log, the Sum of the log's object before this one.
	Previous Sum
	// Sum is that of the encoded list. Decoding sets it.
	Sum Sum

	Objects []Object
	Used    []Use
	Removed []Removal
	Deleted []ObjectID
	Lost    []Loss   // of KindIn alone
	Sources []Source // of KindLog alone
	// Manifest is the canonical manifest of the namespace in the name, of KindNamespace alone.
	Manifest []byte
}

// Use says when an object was last used.
type Use struct {
	Object ObjectID
	When   Seconds
}

// Removal says that an object is no longer offered, since when, and why. Its bytes are still there.
type Removal struct {
	Object ObjectID
	When   Seconds
	Cause  Cause
}

// Loss is the report of a reader that found an object missing or damaged.
type Loss struct {
	Object ObjectID
	Cause  Cause
}

// Source is a list of a writer that was merged into a log object.
type Source struct {
	Writer   WriterID
	Sequence uint64 // at most [MaxCounter]
}

// Cause says why an object is not offered any more.
type Cause uint8

// The causes. A newer program may write others.
const (
	CauseCap     Cause = iota + 1 // the bucket was full
	CauseAge                      // nobody used it for long
	CauseLost                     // its bytes are not there
	CauseDamaged                  // its bytes are not what was written
	// CauseArchived is in no list: its bytes are in an archive class, and each node finds out for itself.
	CauseArchived
)

// String returns the cause as messages and metrics show it.
func (c Cause) String() string {
	switch c {
	case CauseCap:
		return "cap"
	case CauseAge:
		return "age"
	case CauseLost:
		return "lost"
	case CauseDamaged:
		return "damaged"
	case CauseArchived:
		return "archived"
	}
	return fmt.Sprintf("cause %d", uint8(c))
}

// Bounds of encoded lists in bytes, by kind.
const (
	MaxInBytes        = 1 << 20
	MaxLogBytes       = 8 << 20
	MaxPartBytes      = 64 << 20
	MaxFooterBytes    = listOverhead + 2*sectionHeaderBytes + digestBytes + objectEntryBytes + MaxObjectRecords*(runEntryBytes+recordEntryBytes)
	MaxNamespaceBytes = listOverhead + sectionHeaderBytes + connector.MaxManifestBytes
)

// MostBytes is the greatest size of an object of a kind, 0 for an unknown kind. Nothing
// larger need be read.
func MostBytes(k Kind) int64 {
	switch k {
	case KindFormat, KindLease, KindProbe:
		return maxSmallBytes
	case KindHead:
		return maxHeadBytes
	case KindData:
		return MaxObjectBytes
	case KindNamespace, KindIn, KindLog, KindPart:
		f, _ := formOf(k)
		return f.most
	}
	return 0
}

// form is what lists of a kind may be.
type form struct {
	number uint8 // in the header
	most   int64 // bytes
	// sections that it may have.
	sections []section
}

// formOf returns the form of the lists in objects of a kind; of data objects that is the footer.
func formOf(k Kind) (form, bool) {
	switch k {
	case KindIn:
		return form{1, MaxInBytes, []section{sectionNamespaces, sectionObjects, sectionUsed, sectionRemoved, sectionDeleted, sectionLost}}, true
	case KindLog:
		return form{2, MaxLogBytes, []section{sectionNamespaces, sectionObjects, sectionUsed, sectionRemoved, sectionDeleted, sectionSources}}, true
	case KindPart:
		return form{3, MaxPartBytes, []section{sectionNamespaces, sectionObjects, sectionUsed, sectionRemoved, sectionDeleted}}, true
	case KindData:
		return form{4, MaxFooterBytes, []section{sectionNamespaces, sectionObjects}}, true
	case KindNamespace:
		return form{5, MaxNamespaceBytes, []section{sectionManifest}}, true
	}
	return form{}, false
}

// header returns what the header of a list repeats of its name. Where the name has no writer it is by.
func (n Name) header(by WriterID) (number uint64, writer WriterID) {
	switch n.Kind {
	case KindIn:
		return n.Number, n.Writer
	case KindLog, KindPart:
		return n.Number, by
	case KindData:
		return n.Object.Counter(), n.Object.Writer()
	}
	return 0, by
}

// checkFooter reports an error if a footer is not that of its object.
func (l *List) checkFooter() error {
	if l.Name.Kind == KindData && (len(l.Objects) != 1 || l.Objects[0].ID != l.Name.Object) {
		return fmt.Errorf("%w: the footer of another object, or of %d", ErrBad, len(l.Objects))
	}
	return nil
}

// Damaged reports whether an error of decoding means that the bytes are of no use to anybody: they are
// neither of a newer program nor of another key or bucket.
func Damaged(err error) bool {
	return (errors.Is(err, ErrBad) || errors.Is(err, ErrTooLarge)) && !errors.Is(err, ErrNewer) &&
		!errors.Is(err, ErrForeign) && !errors.Is(err, ErrUnsealed) && !errors.Is(err, seal.ErrUnknownKey)
}
