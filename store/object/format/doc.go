// Package format encodes what the object tier puts into a bucket: names of objects, the tail of data
// objects, lists of what there is, and the small files that say how to read them. All integers are
// little-endian unless it says otherwise. docs/object-format.md describes the same bytes.
//
// Whatever comes from a bucket may be damaged, foreign, of a newer program, or made by somebody who
// means harm. So every decoder bounds sizes before it allocates, takes at most a small multiple of
// the memory that it was given, and verifies checksums, or tags where there is a key, before it looks
// at anything else. Nothing that is decoded refers to the bytes it came from.
package format

import "errors"

// Version is the version of data objects and lists that is written.
const Version = 1

// Errors of decoding. Match them with [errors.Is]. What was sealed with a key that is not in the ring
// gives [seal.ErrUnknownKey].
var (
	// ErrBad says that bytes are damaged, or something else than their name says. It is also what
	// forged bytes give.
	ErrBad = errors.New("damaged, or not what its name says")
	// ErrNewer says that they are intact and need a program that knows more than this one. They must
	// neither be used nor deleted.
	ErrNewer = errors.New("needs a newer program")
	// ErrForeign says that they are intact and belong to another bucket: somebody copied them.
	ErrForeign = errors.New("belongs to another bucket")
	// ErrUnsealed says that they are not encrypted, though there is a key: anybody may have written them.
	ErrUnsealed = errors.New("is not sealed, and only what is sealed is accepted")
	// ErrTooLarge says that they pass the bound of their kind.
	ErrTooLarge = errors.New("is larger than its kind may be")
	// ErrInvalid says that what was to be encoded breaks the rules of the format.
	ErrInvalid = errors.New("cannot be encoded")
)
