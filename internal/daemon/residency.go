package daemon

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/httplimit"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

// The residency stream says what the store holds: GET /v1/residency answers with frames without end, each
// a length, u32 little endian, and that many bytes of a msgpack array whose first element is its type.
//
//	[1, version, epoch, resumed]             hello; resumed streams have no snapshot
//	[2, namespace, digest bin, manifest bin] a namespace, before its first record; the manifest is its
//	                                         canonical JSON, empty if the store has lost it
//	[3, first, records bin]                  records; first is the number of the first event, or 0 in the
//	                                         snapshot; the others count on from it
//	[4, seq, count]                          the snapshot of count records ends, as of event seq
//	[5, seq]                                 nothing happened for a while; the last event was seq
//	[6, code, text]                          the stream ends: "lagged", "stopping" or "error"
//
// A record is 39 bytes: kind u8 (1 stored, 2 removed), shard u16, namespace u32, key, and the key of the
// chain's previous block (its scope's root key for the first one, zero if removed); numbers are little
// endian.
//
// Packed records in few msgpack values rather than lines of JSON: a store of 4 TB has millions of records,
// 39 bytes each here and about 110 with hexadecimal keys, and reading one costs nanoseconds.
//
// With ?epoch=E&after=N the stream resumes behind event N of epoch E, if the store still has what
// followed; else it begins with a snapshot as always.
const (
	residencyVersion = 1

	residencyHello       = 1
	residencyNamespace   = 2
	residencyRecords     = 3
	residencySnapshotEnd = 4
	residencyHeartbeat   = 5
	residencyEnd         = 6

	residencyRecordBytes = 39
	// residencyBatch is how many records one frame has at most.
	residencyBatch = 1024
	// residencyStreams bounds the streams at one time: routers, and not many.
	residencyStreams = 64
	// residencySnapshots bounds those of them that read a snapshot: that costs processor time,
	// and keeps what the journal has deleted meanwhile.
	residencySnapshots = 16
	// residencyLeast is how many records of a snapshot a reader must take in a second, after
	// a while that all have.
	residencyLeast = 20_000
)

const (
	residencyHeartbeatInterval = 10 * time.Second
	// residencyWriteTimeout is how long a reader may read nothing.
	residencyWriteTimeout = 30 * time.Second
	// residencySnapshotTime is the time that all readers have for a snapshot.
	residencySnapshotTime = 2 * time.Minute
	// residencyRetry is when who finds no room may come again.
	residencyRetry = "5"
)

// errSlowReader ends a snapshot that is read too slowly.
var errSlowReader = fmt.Errorf("the snapshot was read too slowly: %w", store.ErrLagged)

// residencySource is the store as the stream needs it; see [disk.Store].
type residencySource interface {
	Epoch() uint64
	Namespaces() []disk.NamespaceInfo
	// records is about how many there are.
	records() int64
	Subscribe(ctx context.Context) (store.Subscription, error)
	SubscribeAfter(epoch, seq uint64) (store.Subscription, error)
}

type storeResidency struct{ *disk.Store }

func (s storeResidency) records() int64 { return s.Stats().Records }

// newResidencyHandler serves the residency stream of s until ctx, the daemon's life, ends. Memory is a
// few buffers for each stream, whatever the store holds and however slow the reader is: one that falls
// behind what the store keeps of its events gets the end "lagged". Streams and snapshots are shared out
// among clients, so that none takes all.
func newResidencyHandler(ctx context.Context, s *disk.Store) http.Handler {
	return &residencyHandler{
		ctx: ctx, source: storeResidency{s},
		streams: httplimit.NewShares(residencyStreams), snapshots: httplimit.NewShares(residencySnapshots),
		numbers: newResidencyNumbers(),
	}
}

type residencyHandler struct {
	ctx                context.Context // ends all streams
	source             residencySource
	streams, snapshots *httplimit.Shares

	mu         sync.Mutex
	numbers    *residencyNumbers
	renumbered bool
}

// residencyNamespaces is how many namespaces a reader numbers.
const residencyNamespaces = 1 << 16

// residencyNumbers are what streams call namespaces. A stream that goes on does not say again what
// a number means, so that they stay the same as long as the store is open.
type residencyNumbers struct {
	mu sync.Mutex
	of map[connector.NamespaceDigest]uint32
}

func newResidencyNumbers() *residencyNumbers {
	return &residencyNumbers{of: make(map[connector.NamespaceDigest]uint32)}
}

// number fails with an error that ends the stream once all numbers are given out.
func (n *residencyNumbers) number(ns connector.NamespaceDigest) (uint32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	number, known := n.of[ns]
	switch {
	case known:
		return number, nil
	case len(n.of) == residencyNamespaces:
		return 0, fmt.Errorf("more than %d namespaces: %w", residencyNamespaces, store.ErrLagged)
	}
	number = uint32(len(n.of))
	n.of[ns] = number
	return number, nil
}

func (n *residencyNumbers) full() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.of) == residencyNamespaces
}

// numbersOf returns the numbers for a stream. Once all are given out a new stream begins again, and
// none goes on where another stopped.
func (h *residencyHandler) numbersOf(resumed bool) *residencyNumbers {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !resumed && h.numbers.full() {
		h.numbers, h.renumbered = newResidencyNumbers(), true
	}
	return h.numbers
}

// resumable reports whether a stream may go on where another stopped.
func (h *residencyHandler) resumable() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.renumbered
}

// refuseResidency tells a reader to come again.
func refuseResidency(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", residencyRetry)
	http.Error(w, why, http.StatusServiceUnavailable)
}

func (h *residencyHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	client := httplimit.ClientOf(r)
	if !h.streams.Take(client) {
		refuseResidency(w, "too many residency streams")
		return
	}
	defer h.streams.Give(client)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	u := h.resume(r)
	resumed := u != nil
	giveSnapshot := func() {}
	if !resumed {
		if !h.snapshots.Take(client) {
			refuseResidency(w, "too many snapshots of residency are being read")
			return
		}
		giveSnapshot = sync.OnceFunc(func() { h.snapshots.Give(client) })
		defer giveSnapshot()
		var err error
		if u, err = h.source.Subscribe(ctx); err != nil {
			refuseResidency(w, err.Error())
			return
		}
	}
	defer func() { _ = u.Close() }()
	w.Header().Set("Content-Type", "application/vnd.kvconn.residency")
	w.Header().Set("Cache-Control", "no-store")
	s := &residencyStream{
		source: h.source, numbers: h.numbersOf(resumed), w: bufio.NewWriterSize(w, 64<<10), control: http.NewResponseController(w),
		sent: make(map[connector.NamespaceDigest]uint32), snapshotRead: giveSnapshot,
	}
	if err := s.run(ctx, u, resumed); r.Context().Err() == nil {
		s.end(h.ctx, err)
	}
}

// resume goes on where the reader says it stopped; nil if that is not possible.
func (h *residencyHandler) resume(r *http.Request) store.Subscription {
	epoch, errEpoch := strconv.ParseUint(r.URL.Query().Get("epoch"), 10, 64)
	after, errAfter := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	if errEpoch != nil || errAfter != nil || !h.resumable() {
		return nil
	}
	u, err := h.source.SubscribeAfter(epoch, after)
	if err != nil { // not kept any more
		return nil
	}
	return u
}

// residencyStream writes one stream. After an error of w nothing more is written.
type residencyStream struct {
	source  residencySource
	numbers *residencyNumbers
	w       *bufio.Writer
	control *http.ResponseController
	// sent are the numbers of namespaces that were described.
	sent    map[connector.NamespaceDigest]uint32
	body    []byte
	records []byte
	first   uint64 // number of the first of records
	// snapshotRead says that the snapshot has been read.
	snapshotRead func()
}

// run writes until something ends the stream, and returns what.
func (s *residencyStream) run(ctx context.Context, u store.Subscription, resumed bool) error {
	b := msgp.AppendUint64(s.frame(residencyHello, 4), residencyVersion)
	b = msgp.AppendUint64(b, s.source.Epoch())
	if err := s.write(msgp.AppendBool(b, resumed)); err != nil {
		return err
	}
	if !resumed {
		if err := s.snapshot(ctx, u); err != nil {
			return err
		}
	}
	if err := s.flush(); err != nil {
		return err
	}
	for {
		if err := s.next(ctx, u); err != nil {
			return err
		}
		if err := s.flush(); err != nil {
			return err
		}
	}
}

func (s *residencyStream) snapshot(ctx context.Context, u store.Subscription) error {
	defer s.snapshotRead()
	allowed := residencySnapshotTime + time.Duration(s.source.records()/residencyLeast)*time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, allowed, errSlowReader)
	defer cancel()
	seq, count := u.Seq(), uint64(0)
	err := u.Snapshot(ctx, func(r store.Resident) error {
		count++
		return s.record(store.EventStored, r.ID, r.Parent[:])
	})
	if err != nil {
		return fmt.Errorf("read the snapshot: %w", err)
	}
	if err := s.writeRecords(); err != nil {
		return err
	}
	return s.write(msgp.AppendUint64(msgp.AppendUint64(s.frame(residencySnapshotEnd, 3), seq), count))
}

// next writes the next events, or says that there are none.
func (s *residencyStream) next(ctx context.Context, u store.Subscription) error {
	wait, cancel := context.WithTimeout(ctx, residencyHeartbeatInterval)
	defer cancel()
	events, err := u.Next(wait)
	switch {
	case err == nil:
	case errors.Is(err, store.ErrTimeout) && ctx.Err() == nil:
		return s.write(msgp.AppendUint64(s.frame(residencyHeartbeat, 2), u.Seq()))
	default:
		return err
	}
	s.first = events[0].Seq
	for i := range events {
		e := &events[i]
		if err := s.record(e.Kind, e.ID, e.Parent[:]); err != nil {
			return err
		}
	}
	return s.writeRecords()
}

// record adds a record to the frame that is being made.
func (s *residencyStream) record(kind store.EventKind, id store.RecordID, parent []byte) error {
	number, known := s.sent[id.Namespace]
	if !known {
		if err := s.namespace(id.Namespace); err != nil {
			return err
		}
		number = s.sent[id.Namespace]
	}
	b := append(s.records, byte(kind))
	b = binary.LittleEndian.AppendUint16(b, uint16(id.Shard))
	b = binary.LittleEndian.AppendUint32(b, number)
	b = append(b, id.Key[:]...)
	s.records = append(b, parent...)
	if len(s.records) >= residencyBatch*residencyRecordBytes {
		return s.writeRecords()
	}
	return nil
}

// writeRecords ends the frame that is being made.
func (s *residencyStream) writeRecords() error {
	n := len(s.records) / residencyRecordBytes
	if n == 0 {
		return nil
	}
	b := msgp.AppendUint64(s.frame(residencyRecords, 3), s.first)
	err := s.write(msgp.AppendBytes(b, s.records))
	s.records = s.records[:0]
	if s.first > 0 {
		s.first += uint64(n)
	}
	return err
}

// namespace says what a namespace is. What was recorded before it goes first, so that numbers stay in
// order.
func (s *residencyStream) namespace(id connector.NamespaceDigest) error {
	if err := s.writeRecords(); err != nil {
		return err
	}
	number, err := s.numbers.number(id)
	if err != nil {
		return err
	}
	s.sent[id] = number
	for _, n := range s.source.Namespaces() {
		if n.Digest == id {
			b := msgp.AppendUint64(s.frame(residencyNamespace, 4), uint64(number))
			return s.write(msgp.AppendBytes(msgp.AppendBytes(b, n.Digest[:]), n.Manifest))
		}
	}
	return fmt.Errorf("namespace %v is not known to its store", id)
}

// frame begins a frame of so many values.
func (s *residencyStream) frame(kind uint64, values uint32) []byte {
	b := append(s.body[:0], 0, 0, 0, 0)
	return msgp.AppendUint64(msgp.AppendArrayHeader(b, values), kind)
}

// write sends a frame, its length in front.
func (s *residencyStream) write(b []byte) error {
	s.body = b
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	if len(b) > s.w.Available() {
		if err := s.flush(); err != nil {
			return err
		}
	}
	_, err := s.w.Write(b)
	return err
}

// flush sends what is buffered, within the time a reader has.
func (s *residencyStream) flush() error {
	err := s.control.SetWriteDeadline(time.Now().Add(residencyWriteTimeout))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if err := s.w.Flush(); err != nil {
		return err
	}
	return s.control.Flush()
}

// end tells the reader why the stream ends.
func (s *residencyStream) end(daemon context.Context, err error) {
	code := "error"
	switch {
	case daemon.Err() != nil || errors.Is(err, store.ErrClosed):
		code, err = "stopping", errors.New("the daemon is stopping")
	case errors.Is(err, store.ErrLagged):
		code = "lagged"
	}
	b := msgp.AppendString(s.frame(residencyEnd, 3), code)
	if s.write(msgp.AppendString(b, err.Error())) == nil {
		_ = s.flush() // the reader has gone
	}
}
