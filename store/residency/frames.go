// Package residency is the stream in which a store says what it holds: [Writer] and [Reader] of its format,
// [Stream], which tells one reader what a store's subscription says, and [Shards], which knows when a block
// is complete.
//
// A stream is a sequence of frames without end, each a length, u32 little endian, and that many bytes of a
// msgpack array whose first element is the frame's type:
//
//	[1, version, epoch, resumed]             hello; resumed streams have no snapshot
//	[2, number, digest bin, manifest bin]    a namespace, before its first record; the manifest is its
//	                                         canonical JSON, empty if the store has lost it
//	[3, first, records bin]                  records; first is the number of the first event, or 0 in the
//	                                         snapshot; the others count on from it
//	[4, seq, count]                          the snapshot of count records ends, as of event seq
//	[5, seq]                                 nothing happened for a while; the last event was seq
//	[6, code, text]                          the stream ends: "lagged", "stopping" or "error"
//	[7, number, name, scope]                 from now on requests with the LoRA adapter of that name have KV of that
//	                                         scope in a namespace; empty if that is not known, or not one alone
//
// A record is 39 bytes: kind u8 (1 stored, 2 removed), shard u16, namespace's number u32, key, and the key of the
// chain's previous block (its scope's root key for the first one, zero if removed). Numbers are little
// endian. Readers skip frames of types they do not know.
//
// Records are packed into few msgpack values because a store of 4 TB has millions of them: 39 bytes each
// here, about 110 as a line of JSON with hexadecimal keys, and a few nanoseconds to read.
//
// A reader that lost its connection asks for the events after its [Position]. If the store still has them,
// the stream resumes there; otherwise it begins with a snapshot. Each stream numbers namespaces by itself, and
// a request to resume says that its reader knows that (numbers=stream). Readers of earlier releases take a
// number for what it was in the stream before: for them every stream begins with a snapshot.
package residency

import (
	"encoding/binary"
	"errors"
	"net/url"
	"strconv"

	"github.com/kvconn/kvconn/connector"
)

const (
	version = 1

	typeHello       = 1
	typeNamespace   = 2
	typeRecords     = 3
	typeSnapshotEnd = 4
	typeHeartbeat   = 5
	typeEnd         = 6
	typeAdapter     = 7

	recordBytes   = 39
	recordStored  = 1
	recordRemoved = 2

	// batchRecords is how many records a frame has at most.
	batchRecords = 1024
	// maxFrameBytes bounds a frame: batchRecords records, or a manifest of connector.MaxManifestBytes.
	maxFrameBytes = 128 << 10
)

// MaxNamespaces bounds the namespaces of one stream, with those of the streams that it resumes.
const MaxNamespaces = 1 << 16

var (
	// ErrMalformed says that a stream's bytes are not its format.
	ErrMalformed = errors.New("malformed frame in a residency stream")
	// ErrGap says that a stream left out events.
	ErrGap = errors.New("events are missing in a residency stream")
	// ErrEnded says that the store ended the stream; the text says why.
	ErrEnded = errors.New("the store has ended the residency stream")
)

// Position is how far a reader has come: it has seen the events of an epoch up to number Seq. The zero
// Position is that of a reader that has seen nothing.
type Position struct{ Epoch, Seq uint64 }

// Query is the position as the parameters of a request that resumes there.
func (p Position) Query() url.Values {
	return url.Values{
		"epoch": {strconv.FormatUint(p.Epoch, 10)}, "after": {strconv.FormatUint(p.Seq, 10)}, "numbers": {"stream"},
	}
}

// ParsePosition reads the parameters of a request, and reports whether the stream can be resumed there.
func ParsePosition(q url.Values) (p Position, ok bool) {
	var errEpoch, errSeq error
	p.Epoch, errEpoch = strconv.ParseUint(q.Get("epoch"), 10, 64)
	p.Seq, errSeq = strconv.ParseUint(q.Get("after"), 10, 64)
	return p, errEpoch == nil && errSeq == nil && q.Get("numbers") == "stream"
}

// Hello begins a stream. One that is not resumed has a snapshot next.
type Hello struct {
	Epoch   uint64
	Resumed bool
}

// Namespace describes the namespace that later records of the stream call by Number.
type Namespace struct {
	Number uint32
	Digest connector.NamespaceDigest
	// Manifest is its canonical JSON; empty if the store has lost it. The reader's is valid until the next
	// frame.
	Manifest []byte
}

// Adapter says that the engines of a namespace use one content for the LoRA adapter with a name, from now on.
// A stream begins with none.
type Adapter struct {
	Namespace uint32
	// Name is at most connector.MaxIDBytes long, Scope, the LoRA of a connector.Scope, at most connector.MaxScopeBytes.
	// Scope is empty if nothing is known of the name any more, or engines disagree.
	Name, Scope string
}

// Record says that a shard of a block was stored or removed.
type Record struct {
	Removed   bool
	Shard     connector.Shard
	Namespace uint32
	Key       connector.Key
	// Parent is the key of the chain's previous block, or its scope's root key; zero if Removed.
	Parent connector.Key
}

// Records are the records of one frame, valid until the next one is read.
type Records struct{ packed []byte }

// Len is the number of records.
func (r Records) Len() int { return len(r.packed) / recordBytes }

// At is record i.
func (r Records) At(i int) Record {
	b := r.packed[i*recordBytes:][:recordBytes]
	return Record{
		Removed: b[0] == recordRemoved, Shard: connector.Shard(binary.LittleEndian.Uint16(b[1:])),
		Namespace: binary.LittleEndian.Uint32(b[3:]), Key: connector.Key(b[7:]), Parent: connector.Key(b[23:]),
	}
}

// append adds a record in its packed form.
func (r *Records) append(n Record) {
	kind := byte(recordStored)
	if n.Removed {
		kind = recordRemoved
	}
	b := binary.LittleEndian.AppendUint16(append(r.packed, kind), uint16(n.Shard))
	b = binary.LittleEndian.AppendUint32(b, n.Namespace)
	r.packed = append(append(b, n.Key[:]...), n.Parent[:]...)
}

// SnapshotEnd says that the snapshot is complete.
type SnapshotEnd struct{}
