package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Destination is a store that records are put into.
type Destination interface {
	store.Writer
	OpenNamespace(m *connector.Manifest) (connector.NamespaceDigest, error)
	CloseNamespace(ns connector.NamespaceDigest)
}

// Imported is what an import has read, and what became of it.
type Imported struct {
	Namespaces int `json:"namespaces"`
	// Records are in the store now, those that were there before included. Bytes are those of their payloads.
	Records int64 `json:"records"`
	Bytes   int64 `json:"bytes"`
	// Damaged records failed their checksum. Unknown ones are of a namespace whose manifest was damaged or is not in the file. The store has
	// Refused others: Refusal is why it has refused the first.
	Damaged int64  `json:"damaged"`
	Unknown int64  `json:"unknown"`
	Refused int64  `json:"refused"`
	Refusal string `json:"refusal"`
	// SkippedBytes are no frame: headers of records were damaged there, or it is no archive.
	SkippedBytes int64 `json:"skipped_bytes"`
	// Complete says that the end of the archive was found.
	Complete bool `json:"complete"`
}

const (
	// inFlightBytes of payloads are in memory at one time, or one record.
	inFlightBytes = 64 << 20
	// maxNamespaces bounds the namespaces of one archive: records of others are unknown.
	maxNamespaces = 1024
	// busyWait is how long a store that is busy is asked again, busyPause the time between.
	busyWait, busyPause = 30 * time.Second, 5 * time.Millisecond
)

// Import reads an archive and writes its records into a store, each verified. A damaged record is counted, and costs no other. Nil for a
// destination only verifies. It fails with the first error of r, or the cause of ctx; what was read by then is in the store.
func Import(ctx context.Context, dst Destination, r io.Reader) (Imported, error) {
	m := &importing{dst: dst, in: reader{r: bufio.NewReaderSize(r, bufferBytes)}, shards: make(map[connector.NamespaceDigest]int)}
	m.free.L = &m.mu
	err := m.run(ctx)
	m.mu.Lock()
	for m.inFlight > 0 {
		m.free.Wait()
	}
	m.mu.Unlock()
	if dst != nil {
		for ns := range m.shards {
			dst.CloseNamespace(ns)
		}
	}
	m.done.SkippedBytes, m.done.Namespaces = m.in.skipped, len(m.shards)
	return m.done, err
}

// importing is an import under way.
type importing struct {
	dst Destination
	in  reader
	// shards is how many each namespace has that is open.
	shards map[connector.NamespaceDigest]int

	mu       sync.Mutex
	free     sync.Cond
	inFlight int64
	done     Imported
}

func (m *importing) run(ctx context.Context) error {
	for ctx.Err() == nil {
		var f frame
		err := m.in.next(&f)
		if err == nil {
			switch f.kind {
			case kindNamespace:
				err = m.namespace(&f)
			case kindRecord:
				err = m.record(ctx, &f)
			case kindEnd:
				m.done.Complete = true
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // cut off
			return nil
		case err != nil:
			return err
		}
	}
	return context.Cause(ctx)
}

// namespace opens a namespace. One whose manifest is damaged may come again.
func (m *importing) namespace(f *frame) error {
	b := make([]byte, f.bytes)
	if err := m.in.payload(f, b); err != nil {
		if errors.Is(err, errDamaged) {
			return nil
		}
		return err
	}
	manifest, err := connector.ParseManifest(b)
	if err != nil || manifest.Digest() != f.ID.Namespace {
		return nil // its records are unknown
	}
	if _, open := m.shards[f.ID.Namespace]; open || len(m.shards) == maxNamespaces {
		return nil
	}
	if m.dst != nil {
		if _, err := m.dst.OpenNamespace(manifest); err != nil {
			return fmt.Errorf("open namespace %v: %w", f.ID.Namespace, err)
		}
	}
	n := 0
	for g := range manifest.Groups {
		for _, shard := range manifest.GroupShards(g) {
			n = max(n, int(shard)+1)
		}
	}
	m.shards[f.ID.Namespace] = n
	return nil
}

// record writes a record.
func (m *importing) record(ctx context.Context, f *frame) error {
	m.take(int64(f.bytes))
	b := store.AlignedBuffer(f.bytes)
	if err := m.in.payload(f, b); err != nil {
		if m.give(int64(f.bytes), nil); errors.Is(err, errDamaged) {
			m.done.Damaged++
			return nil
		}
		return err
	}
	n, known := m.shards[f.ID.Namespace]
	switch {
	case !known || int(f.ID.Shard) >= n:
		m.give(int64(f.bytes), func() { m.done.Unknown++ })
		return nil
	case m.dst == nil:
		m.give(int64(f.bytes), m.written(nil, f.bytes))
		return nil
	}
	op := &store.WriteOp{Record: f.Record, Scope: f.scope, Payload: b}
	for end := time.Now().Add(busyWait); ; {
		taken, err := m.dst.Write([]*store.WriteOp{op}, func(op *store.WriteOp) { m.give(int64(f.bytes), m.written(op.Err, f.bytes)) })
		switch {
		case taken == 1:
			return nil
		case errors.Is(err, store.ErrBusy) && ctx.Err() == nil && time.Now().Before(end):
			time.Sleep(busyPause)
		case errors.Is(err, store.ErrClosed):
			m.give(int64(f.bytes), m.written(err, f.bytes))
			return err
		default:
			m.give(int64(f.bytes), m.written(err, f.bytes))
			return nil
		}
	}
}

// written returns what counts a record.
func (m *importing) written(err error, bytes int) func() {
	return func() {
		if err == nil {
			m.done.Records++
			m.done.Bytes += int64(bytes)
			return
		}
		if m.done.Refused++; m.done.Refusal == "" {
			m.done.Refusal = err.Error()
		}
	}
}

// take waits until there is room for a payload.
func (m *importing) take(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.inFlight > 0 && m.inFlight+bytes > inFlightBytes {
		m.free.Wait()
	}
	m.inFlight += bytes
}

// give gives its room back, and counts.
func (m *importing) give(bytes int64, count func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if count != nil {
		count()
	}
	m.inFlight -= bytes
	m.free.Broadcast()
}
