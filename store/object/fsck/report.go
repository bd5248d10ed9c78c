package fsck

import (
	"errors"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

// Verdict says what is wrong with something in a bucket.
type Verdict string

// The verdicts.
const (
	Damaged   Verdict = "damaged"
	Missing   Verdict = "missing"
	WrongSize Verdict = "wrong size"
	// Orphan: a data object in no list.
	Orphan Verdict = "orphan"
	// Newer: a newer program wrote it. It is left alone.
	Newer Verdict = "newer"
	// OtherKey: it is sealed with a key that is not in the key file, or a record is.
	OtherKey Verdict = "other key"
	// Unsealed: it is not encrypted, though there is a key.
	Unsealed Verdict = "unsealed"
	// Foreign: it is another bucket's, or nothing that the object tier writes.
	Foreign Verdict = "foreign"
	// Gap: the log lacks an object.
	Gap Verdict = "gap"
)

// VerdictOf is what an error of reading or decoding says, "" if it says nothing of what is stored.
func VerdictOf(err error) Verdict {
	switch {
	case errors.Is(err, bucket.ErrMissing):
		return Missing
	case errors.Is(err, errSize), errors.Is(err, bucket.ErrRange):
		return WrongSize
	case errors.Is(err, format.ErrNewer), errors.Is(err, record.ErrNewer):
		return Newer
	case errors.Is(err, format.ErrUnsealed), errors.Is(err, record.ErrUnsealed):
		return Unsealed
	case errors.Is(err, seal.ErrUnknownKey), errors.Is(err, record.ErrKey):
		return OtherKey
	case errors.Is(err, format.ErrForeign):
		return Foreign
	case format.Damaged(err), errors.Is(err, format.ErrTooLarge):
		return Damaged
	}
	return ""
}

// maxDetails bounds the lists of a report: 10,000 nodes may have left things.
const maxDetails = 10_000

// Problem is something that is wrong.
type Problem struct {
	Name   string  `json:"name"`
	What   Verdict `json:"what"`
	Detail string  `json:"detail,omitempty"`
}

// Report says what [Check] found and did.
type Report struct {
	// Objects and Bytes are the data objects that the bucket has.
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"bytes"`
	// Of these, Present are in the log, Waiting in a list that was not merged yet, Young in none so far, and
	// Leaving were removed and wait to be deleted. The others are among the problems.
	Present int64 `json:"present"`
	Waiting int64 `json:"waiting"`
	Young   int64 `json:"young"`
	Leaving int64 `json:"leaving"`
	// Records and RecordBytes were verified.
	Records     int64 `json:"records"`
	RecordBytes int64 `json:"record_bytes"`
	// Lists are the lists that were read and are intact, by kind.
	Lists map[string]int64 `json:"lists"`
	// Problems are counted by what is wrong. Details has the first of them.
	Problems map[Verdict]int64 `json:"problems"`
	Details  []Problem         `json:"details"`
	// Repaired is what was put right, or will be by the steward.
	Repaired []string `json:"repaired"`
	// Unread things could not be read for other reasons. Failed has the first of them.
	Unread int64    `json:"unread"`
	Failed []string `json:"failed"`
}

// Clean reports whether nothing was wrong.
func (r *Report) Clean() bool { return len(r.Problems) == 0 && r.Unread == 0 }
