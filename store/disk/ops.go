package disk

import (
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
)

// read is an op of a call of [Store.Read] on its way. All of it but the op is guarded by the mutex
// of reads while it is queued or issued, and owned by one goroutine otherwise.
type read struct {
	*store.ReadOp
	id          index.ID
	batch       *readBatch
	found       foundRecord
	header      *headerBuffer
	phase       readPhase
	asked       int // bytes of the padded payload asked of the disk
	outstanding int // requests in the kernel
	issuedAt    time.Time
	ioErr       error
	// probe reads whatever the record is of.
	probe bool
}

// write is an op of a call of [Store.Write] on its way.
type write struct {
	*store.WriteOp
	id        index.ID
	done      func(*store.WriteOp)
	budget    int64    // bytes taken from the write budget
	followers []*write // other ops of the same record, finished with this one
	children  []*write // written, waiting for this one to be committed before them
	// committing is set when the op's turn to be committed has come.
	committing bool
	ref        index.Ref
	depth      uint16 // blocks before it in its chain
	seq        uint64
	// oldRef and oldSeq name the record that this one replaces, if oldSeq is not 0.
	oldRef index.Ref
	oldSeq uint64
}
