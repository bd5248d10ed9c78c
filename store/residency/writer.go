package residency

import (
	"bufio"
	"encoding/binary"
	"io"

	"github.com/tinylib/msgp/msgp"
)

// Writer writes a stream. After an error it writes nothing more, and each later call returns that error. It is
// for one goroutine.
type Writer struct {
	w       *bufio.Writer
	body    []byte
	records Records // of the frame that is being made
	first   uint64  // their first number, 0 in the snapshot
	count   uint64  // of the snapshot's records
}

// NewWriter makes a writer of a stream to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: bufio.NewWriterSize(w, 64<<10)} }

// Hello begins the stream.
func (w *Writer) Hello(h Hello) error {
	b := msgp.AppendUint64(w.frame(typeHello, 4), version)
	return w.write(msgp.AppendBool(msgp.AppendUint64(b, h.Epoch), h.Resumed))
}

// Namespace describes a namespace, which must come before its first record.
func (w *Writer) Namespace(n Namespace) error {
	b := msgp.AppendUint32(w.frame(typeNamespace, 4), n.Number)
	return w.write(msgp.AppendBytes(msgp.AppendBytes(b, n.Digest[:]), n.Manifest))
}

// Adapter says what an adapter's name stands for in a namespace that was described. It must not come within the snapshot.
func (w *Writer) Adapter(a Adapter) error {
	b := msgp.AppendUint32(w.frame(typeAdapter, 4), a.Namespace)
	return w.write(msgp.AppendString(msgp.AppendString(b, a.Name), a.Scope))
}

// Record adds a record: event seq, or a part of the snapshot if seq is 0.
func (w *Writer) Record(seq uint64, r Record) (err error) {
	n, next := w.records.Len(), w.first
	if next > 0 {
		next += uint64(n)
	}
	if n == batchRecords || seq != next {
		err = w.endRecords()
	}
	if w.records.Len() == 0 {
		w.first = seq
	}
	if seq == 0 {
		w.count++
	}
	w.records.append(r)
	return err
}

// SnapshotEnd ends the snapshot, which shows the store as of event seq.
func (w *Writer) SnapshotEnd(seq uint64) error {
	return w.write(msgp.AppendUint64(msgp.AppendUint64(w.frame(typeSnapshotEnd, 3), seq), w.count))
}

// Heartbeat says that nothing happened after event seq.
func (w *Writer) Heartbeat(seq uint64) error {
	return w.write(msgp.AppendUint64(w.frame(typeHeartbeat, 2), seq))
}

// End ends the stream with a reason and sends everything.
func (w *Writer) End(code, text string) error {
	b := msgp.AppendString(w.frame(typeEnd, 3), code)
	_ = w.write(msgp.AppendString(b, text)) // Flush returns its error
	return w.Flush()
}

// Flush sends everything written so far.
func (w *Writer) Flush() error {
	_ = w.endRecords() // the next line returns its error
	return w.w.Flush()
}

// frame ends the frame of records, and begins one of n values.
func (w *Writer) frame(kind uint8, n uint32) []byte {
	_ = w.endRecords() // writing the frame returns its error
	return w.begin(kind, n)
}

// endRecords writes the frame of the records that were gathered.
func (w *Writer) endRecords() error {
	if w.records.Len() == 0 {
		return nil
	}
	b := msgp.AppendBytes(msgp.AppendUint64(w.begin(typeRecords, 3), w.first), w.records.packed)
	w.records.packed = w.records.packed[:0]
	return w.write(b)
}

func (w *Writer) begin(kind uint8, n uint32) []byte {
	return msgp.AppendUint8(msgp.AppendArrayHeader(append(w.body[:0], 0, 0, 0, 0), n), kind)
}

// write sends a frame after putting its length before it.
func (w *Writer) write(b []byte) error {
	w.body = b
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	_, err := w.w.Write(b)
	return err
}
