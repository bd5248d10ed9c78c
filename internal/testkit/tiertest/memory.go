// Package tiertest has the suite that every [store.Tier] must pass, and a tier in memory for tests
// that want one of a given speed, size and behaviour.
package tiertest

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Memory is a tier that keeps records in memory. It keeps every promise of the interface. It is
// safe for concurrent use.
type Memory struct {
	o Options

	mu         sync.Mutex
	records    map[store.RecordID]*list.Element // of *entry
	used       *list.List                       // the record used last is the first
	bytes      int64
	hits       uint64
	speed      store.Speed
	namespaces map[connector.NamespaceDigest]*namespace
	leases     map[store.LeaseID]*lease
	leaseID    store.LeaseID
	log        eventLog
	stalled    chan struct{} // closed when reads go on
	closed     bool
	reads      sync.WaitGroup // calls of Read
	devices    sync.WaitGroup // what writes to buffers
}

var _ store.Tier = (*Memory)(nil)

// Options say what a [Memory] is like.
type Options struct {
	// Name is the level's. Default "memory".
	Name string
	// MaxRecords bounds the records. Default 1024.
	MaxRecords int
	// Latency is the time that each read takes.
	Latency time.Duration
	// KeepEvents bounds the events kept for subscribers. Default all.
	KeepEvents int
}

type entry struct {
	store.Record
	scope   connector.ScopeDigest
	payload []byte
	sum     uint64
}

// NewMemory returns an empty tier.
func NewMemory(o Options) *Memory {
	if o.Name == "" {
		o.Name = "memory"
	}
	if o.MaxRecords == 0 {
		o.MaxRecords = 1024
	}
	m := &Memory{
		o: o, records: make(map[store.RecordID]*list.Element), used: list.New(),
		namespaces: make(map[connector.NamespaceDigest]*namespace), leases: make(map[store.LeaseID]*lease),
		stalled: make(chan struct{}),
	}
	close(m.stalled)
	m.log.init(o.KeepEvents)
	return m
}

// SetSpeed sets what Speed returns.
func (m *Memory) SetSpeed(s store.Speed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.speed = s
}

// Flip flips a bit of a record's payload.
func (m *Memory) Flip(id store.RecordID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.records[id]; e != nil {
		e.Value.(*entry).payload[0] ^= 1
	}
}

// Stall makes reads wait until resume is called, which must happen before Close.
func (m *Memory) Stall() (resume func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	stalled := make(chan struct{})
	m.stalled = stalled
	return sync.OnceFunc(func() { close(stalled) })
}

// Leases is the number of leases in force.
func (m *Memory) Leases() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	return len(m.leases)
}

// Name implements [store.Level], as do the methods up to Usage.
func (m *Memory) Name() string { return m.o.Name }

// Present sets at[i] where a record is there.
func (m *Memory) Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, k := range keys {
		at[i] = at[i] || m.records[store.RecordID{Namespace: ns, Shard: shard, Key: k}] != nil
	}
}

// Speed returns what SetSpeed has set.
func (m *Memory) Speed() store.Speed {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.speed
}

// Usage counts the records.
func (m *Memory) Usage() store.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	limit := int64(m.o.MaxRecords) * store.MaxPayloadBytes
	return store.Usage{Records: int64(len(m.records)), UsedBytes: m.bytes, MaxBytes: limit, ReachableBytes: limit, Hits: m.hits}
}

// Read implements [store.Reader].
func (m *Memory) Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		for _, op := range ops {
			op.Err = store.ErrClosed
			done(op)
		}
		return
	}
	m.reads.Add(1)
	stalled := m.stalled
	m.mu.Unlock()
	defer m.reads.Done()
	var all sync.WaitGroup
	for _, op := range ops {
		r, err := m.find(op)
		if err != nil {
			op.Err = err
			done(op)
			continue
		}
		all.Go(func() { m.read(ctx, stalled, r, op, done) })
	}
	all.Wait()
}

// find checks an op and returns its record.
func (m *Memory) find(op *store.ReadOp) (*entry, error) {
	if err := store.CheckBuffer(op.Payload); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.namespaces[op.ID.Namespace] == nil {
		return nil, fmt.Errorf("namespace %v is not open: %w", op.ID.Namespace, store.ErrInvalid)
	}
	e := m.records[op.ID]
	if e == nil {
		return nil, fmt.Errorf("record %v: %w", op.ID.Key, store.ErrGone)
	}
	r := e.Value.(*entry)
	if len(r.payload) != len(op.Payload) {
		return nil, fmt.Errorf("read of %d bytes of a record of %d: %w", len(op.Payload), len(r.payload), store.ErrInvalid)
	}
	return r, nil
}

// read lets a device write into op's buffer, and reports op when it has, or ctx ends.
func (m *Memory) read(ctx context.Context, stalled <-chan struct{}, r *entry, op *store.ReadOp, done func(*store.ReadOp)) {
	var mu sync.Mutex
	var over, late bool // the device has written; the op was reported before that
	arrived := make(chan struct{})
	m.devices.Go(func() {
		if m.o.Latency > 0 {
			time.Sleep(m.o.Latency)
		}
		<-stalled
		m.mu.Lock()
		copy(op.Payload, r.payload)
		m.mu.Unlock()
		mu.Lock()
		over = true
		settle := late
		mu.Unlock()
		close(arrived)
		if settle {
			op.SetSettled(true)
			if op.OnSettled != nil {
				op.OnSettled(op)
			}
		}
	})
	select {
	case <-arrived:
		m.verify(r, op)
	case <-ctx.Done():
		op.Err = fmt.Errorf("read record %v: %w: %w", op.ID.Key, store.ErrTimeout, context.Cause(ctx))
		mu.Lock()
		if late = !over; late {
			op.SetSettled(false)
		}
		defer mu.Unlock() // the op is settled after it was reported
	}
	done(op)
}

// verify sets an op's result.
func (m *Memory) verify(r *entry, op *store.ReadOp) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.records[op.ID]
	switch {
	case xxh3.Hash(op.Payload) != r.sum:
		op.Err = fmt.Errorf("record %v: payload checksum: %w", op.ID.Key, store.ErrCorrupt)
		if e != nil && e.Value.(*entry) == r {
			m.remove(e)
		}
	case r.Proof != op.Proof || r.Parent != op.Parent && !op.AnyParent:
		op.Err = fmt.Errorf("record %v: %w", op.ID.Key, store.ErrMismatch)
	default:
		op.Err, op.Parent, op.From, op.Scope = nil, r.Parent, m.o.Name, r.scope
		m.hits++
		if e != nil {
			m.used.MoveToFront(e)
		}
	}
}

// Write implements [store.Writer]. Records are there when it returns.
func (m *Memory) Write(ops []*store.WriteOp, done func(*store.WriteOp)) (accepted int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, op := range ops {
		if err := m.accept(op); err != nil {
			return accepted, err
		}
		accepted++
		m.devices.Go(func() { done(op) })
	}
	return accepted, nil
}

// accept stores a record. m.mu is held.
func (m *Memory) accept(op *store.WriteOp) error {
	if m.closed {
		return store.ErrClosed
	}
	if err := store.CheckBuffer(op.Payload); err != nil {
		return err
	}
	if err := m.checkSize(op.ID.Namespace, op.ID.Shard, len(op.Payload)); err != nil {
		return err
	}
	op.Err = nil
	if e := m.records[op.ID]; e != nil {
		if r := e.Value.(*entry); r.Record == op.Record {
			return nil
		}
		m.remove(e)
	}
	m.expire()
	for e := m.used.Back(); e != nil && len(m.records) >= m.o.MaxRecords; {
		next := e.Prev()
		if !m.pinned(e.Value.(*entry).ID) {
			m.remove(e)
		}
		e = next
	}
	if len(m.records) >= m.o.MaxRecords {
		op.Err = fmt.Errorf("all %d records are pinned: %w", m.o.MaxRecords, store.ErrBusy)
		return nil
	}
	r := &entry{Record: op.Record, scope: op.Scope, payload: append([]byte(nil), op.Payload...), sum: xxh3.Hash(op.Payload)}
	m.records[op.ID] = m.used.PushFront(r)
	m.bytes += int64(len(r.payload))
	m.log.add(store.Event{Kind: store.EventStored, ID: op.ID, Parent: op.Parent})
	return nil
}

// remove takes a record out. m.mu is held.
func (m *Memory) remove(e *list.Element) {
	r := m.used.Remove(e).(*entry)
	delete(m.records, r.ID)
	m.bytes -= int64(len(r.payload))
	m.log.add(store.Event{Kind: store.EventRemoved, ID: r.ID})
}

// Probe implements [store.Tier].
func (m *Memory) Probe(ctx context.Context) error {
	m.mu.Lock()
	e := m.used.Back()
	m.mu.Unlock()
	if e == nil {
		return fmt.Errorf("probe: %w", store.ErrGone)
	}
	r := e.Value.(*entry)
	op := &store.ReadOp{Record: r.Record, Payload: store.AlignedBuffer(len(r.payload))}
	m.Read(ctx, []*store.ReadOp{op}, func(*store.ReadOp) {})
	return op.Err
}

// Close implements [store.Tier].
func (m *Memory) Close() error {
	m.mu.Lock()
	if !m.closed {
		m.closed = true
		m.log.close()
	}
	m.mu.Unlock()
	m.reads.Wait()
	m.devices.Wait()
	return nil
}
