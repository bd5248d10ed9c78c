package format

import (
	"fmt"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
)

// Root begins all names. Names are below the prefix that the user gave.
const Root = "kv1/"

// What names of the kinds begin with, to list them.
const (
	NamespacePrefix = Root + "ns/"
	DataPrefix      = Root + "d/"
	InPrefix        = Root + "in/"
	LogPrefix       = Root + "log/"
	PartPrefix      = Root + "part/"
	ProbePrefix     = Root + "probe/"
)

// Names of single files.
const (
	FormatFile = Root + "format"
	HeadFile   = Root + "head"
	LeaseFile  = Root + "lease"
)

// maxNameBytes bounds a name: that of a part is the longest.
const maxNameBytes = 128

// Kind says what an object is.
type Kind uint8

// The kinds of objects.
const (
	KindFormat    Kind = iota + 1 // how to read the bucket: [Note]
	KindNamespace                 // a [List] with the manifest of a namespace
	KindData                      // records, with a [List] of them at the end
	KindIn                        // a [List] of what one writer added, used and lost
	KindLog                       // a [List] that merges these
	KindPart                      // a [List] that merges stretches of the log
	KindHead                      // which parts there are: [Head]
	KindLease                     // which node merges: [Lease]
	KindProbe                     // a trial of conditional writes
)

// Name is the name of an object. Of the fields those count that its kind has; the others are zero.
type Name struct {
	Kind      Kind
	Namespace connector.NamespaceDigest // of KindNamespace
	Object    ObjectID                  // of KindData; of KindPart, drawn like one of a data object
	Writer    WriterID                  // of KindIn and KindProbe
	// Number is the sequence of a writer in KindIn, at most [MaxCounter]. In KindLog it counts from 1
	// without gaps. A part has the log from First to Number.
	First, Number uint64
}

// NamespaceName is the name of a namespace's manifest.
func NamespaceName(d connector.NamespaceDigest) Name { return Name{Kind: KindNamespace, Namespace: d} }

// DataName is the name of a data object.
func DataName(id ObjectID) Name { return Name{Kind: KindData, Object: id} }

// InName is the name of a writer's list. sequence is at most [MaxCounter].
func InName(w WriterID, sequence uint64) Name {
	return Name{Kind: KindIn, Writer: w, Number: sequence}
}

// LogName is the name of the log's object n, from 1 on.
func LogName(n uint64) Name { return Name{Kind: KindLog, Number: n} }

// PartName is the name of a part with the log from first to last. The id tells apart what two
// programs make of the same stretch, or the parts of one that does not fit into one.
func PartName(first, last uint64, id ObjectID) Name {
	return Name{Kind: KindPart, Object: id, First: first, Number: last}
}

// ProbeName is the name of a writer's trial.
func ProbeName(w WriterID) Name { return Name{Kind: KindProbe, Writer: w} }

// String returns the name below the user's prefix, "" for an unknown kind.
func (n Name) String() string {
	switch n.Kind {
	case KindFormat:
		return FormatFile
	case KindNamespace:
		return NamespacePrefix + n.Namespace.String()
	case KindData:
		// S3 divides its work by the first bytes of names: there are 256 of them.
		return fmt.Sprintf("%s%02x/%s", DataPrefix, byte(xxh3.Hash(n.Object[:])), n.Object)
	case KindIn:
		return fmt.Sprintf("%s%s-%012x", InPrefix, n.Writer, n.Number)
	case KindLog:
		return fmt.Sprintf("%s%016x", LogPrefix, n.Number)
	case KindPart:
		return fmt.Sprintf("%s%016x-%016x-%s", PartPrefix, n.First, n.Number, n.Object)
	case KindHead:
		return HeadFile
	case KindLease:
		return LeaseFile
	case KindProbe:
		return ProbePrefix + n.Writer.String()
	}
	return ""
}

// MarshalText writes the name as [Name.String] does.
func (n Name) MarshalText() ([]byte, error) {
	s := n.String()
	if s == "" {
		return nil, fmt.Errorf("name: %w: kind %d", ErrInvalid, n.Kind)
	}
	return []byte(s), nil
}

// UnmarshalText reads a name as [ParseName] does.
func (n *Name) UnmarshalText(b []byte) (err error) {
	*n, err = ParseName(string(b))
	return err
}

// ParseName reads a name below the user's prefix. Each name has one form; all others are [ErrBad]:
// what lies there is not ours.
func ParseName(s string) (Name, error) {
	if len(s) > maxNameBytes {
		return Name{}, fmt.Errorf("name of %d bytes: %w", len(s), ErrBad)
	}
	n, err := parseName(s)
	if err == nil && n.String() != s {
		err = ErrBad // such as a data object below the wrong prefix
	}
	if err != nil {
		return Name{}, fmt.Errorf("name %q: %w", s, err)
	}
	return n, nil
}

func parseName(s string) (n Name, err error) {
	rest, ok := strings.CutPrefix(s, Root)
	dir, file, below := strings.Cut(rest, "/")
	switch {
	case !ok:
		return n, ErrBad
	case !below:
		return parseFile(dir)
	}
	switch dir {
	case "ns":
		n.Kind, err = KindNamespace, parseHex(n.Namespace[:], file)
	case "d":
		_, id, _ := strings.Cut(file, "/")
		n.Kind, err = KindData, parseHex(n.Object[:], id)
	case "in":
		writer, sequence, _ := strings.Cut(file, "-")
		n.Kind, err = KindIn, parseHex(n.Writer[:], writer)
		if err == nil {
			n.Number, err = parseNumber(sequence, 12)
		}
	case "log":
		n.Kind = KindLog
		n.Number, err = parseNumber(file, 16)
	case "part":
		return parsePart(file)
	case "probe":
		n.Kind, err = KindProbe, parseHex(n.Writer[:], file)
	default:
		err = ErrBad
	}
	if n.Kind == KindLog && n.Number == 0 {
		err = ErrBad
	}
	return n, err
}

func parseFile(file string) (n Name, err error) {
	switch Root + file {
	case FormatFile:
		n.Kind = KindFormat
	case HeadFile:
		n.Kind = KindHead
	case LeaseFile:
		n.Kind = KindLease
	default:
		err = ErrBad
	}
	return n, err
}

func parsePart(file string) (n Name, err error) {
	pieces := strings.Split(file, "-")
	if len(pieces) != 3 {
		return n, ErrBad
	}
	n.Kind = KindPart
	if n.First, err = parseNumber(pieces[0], 16); err != nil {
		return n, err
	}
	if n.Number, err = parseNumber(pieces[1], 16); err != nil {
		return n, err
	}
	if n.First == 0 || n.First > n.Number {
		return n, ErrBad
	}
	return n, parseHex(n.Object[:], pieces[2])
}
