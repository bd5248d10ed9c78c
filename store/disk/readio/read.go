package readio

import (
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
)

// Place is where an op's record is. Its slot is pinned.
type Place struct {
	Ref  index.Ref
	Seq  uint64
	At   journal.Location
	File fsio.File
	// Offset is that of the slot in the file.
	Offset int64
}

// Read is an op of a call of [Reader.Read] on its way. All of it but the op is guarded by the
// mutex of the reader while it is queued or issued, and owned by one goroutine otherwise.
type Read struct {
	*store.ReadOp
	Place
	// Probe reads the record whatever prefix it is of.
	Probe bool
	// IOErr is why the disk did not give the record, Header its header if it did.
	IOErr  error
	Header *Header
	// Stored are the bytes after the header, padded, where these are not read into the payload's buffer.
	Stored []byte

	batch       *batch
	phase       phase
	asked       int // bytes of the padded payload asked of the disk
	outstanding int // requests in the kernel, and the report of an abandoned op
	issuedAt    time.Time
}

// Records are what a [Reader] reads.
type Records interface {
	// Locate checks an op and pins its record.
	Locate(op *Read) error
	// Verify sets Err of an op that the disk has answered. It must not wait for I/O.
	Verify(op *Read)
	// Overdue notes that the disk has not given a record in time.
	Overdue(at Place, err error)
	// Unpin ends the pin of Locate, Count notes the result just before the op is reported.
	Unpin(ref index.Ref)
	Count(op *store.ReadOp)
}
