package residency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// heartbeatInterval is how long a stream is silent at most.
const heartbeatInterval = 10 * time.Second

// errSlowReader ends a snapshot that is read too slowly.
var errSlowReader = fmt.Errorf("the snapshot was read too slowly: %w", store.ErrLagged)

// Stream tells one reader what a store holds. Its memory is a few buffers, and the manifests of the namespaces
// while a snapshot is read, however much the store holds and however slow the reader: a reader that falls too far
// behind gets the end "lagged".
type Stream struct {
	// Source is the store, To the reader's side.
	Source Source
	To     *Writer
	// SnapshotTimeout is the time the reader has for the snapshot.
	SnapshotTimeout time.Duration
	// SnapshotDone is called once the snapshot is over; nil is nothing.
	SnapshotDone func()
	// Manifest reads the manifest of a namespace for which Source has none; nil is nothing. Its error is
	// [store.ErrGone] if the manifest is lost: the reader gets an empty one. Any other error ends the stream.
	Manifest func(context.Context, connector.NamespaceDigest) ([]byte, error)

	// Adapters are what engines use, nil for nothing.
	Adapters AdapterSource

	numbers   map[connector.NamespaceDigest]uint32 // of the namespaces that were described
	adapters  map[NamedAdapter]string              // the scopes that the reader was told
	version   uint64                               // of Adapters as it was told
	quiet     time.Time                            // since when nothing was written
	manifests Manifests                            // while a snapshot is read
}

// Run writes what u says, without a snapshot if resumed, until the stream ends, and returns why.
// The caller ends the stream with [Stream.End] and closes u.
func (s *Stream) Run(ctx context.Context, u store.Subscription, resumed bool) error {
	s.numbers = make(map[connector.NamespaceDigest]uint32)
	if err := s.To.Hello(Hello{Epoch: s.Source.Epoch(), Resumed: resumed}); err != nil {
		return err
	}
	if !resumed {
		if err := s.snapshot(ctx, u); err != nil {
			return err
		}
	}
	for s.quiet = time.Now(); ; {
		if err := s.tellAdapters(ctx); err != nil {
			return err
		}
		if err := s.To.Flush(); err != nil {
			return err
		}
		if err := s.next(ctx, u); err != nil {
			return err
		}
	}
}

func (s *Stream) snapshot(ctx context.Context, u store.Subscription) error {
	if s.SnapshotDone != nil {
		defer s.SnapshotDone()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.SnapshotTimeout, errSlowReader)
	defer cancel()
	s.manifests = ReadManifests(s.Source)
	defer func() { s.manifests = nil }()
	seq := u.Seq()
	if err := u.Snapshot(ctx, func(r store.Resident) error {
		return s.record(ctx, &store.Event{Kind: store.EventStored, ID: r.ID, Parent: r.Parent})
	}); err != nil {
		return fmt.Errorf("read the snapshot: %w", err)
	}
	return s.To.SnapshotEnd(seq)
}

// next writes the next events, or that there are none.
func (s *Stream) next(ctx context.Context, u store.Subscription) error {
	wait, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	events, err := u.Next(wait)
	switch {
	case err == nil:
		s.quiet = time.Now()
	case errors.Is(err, store.ErrTimeout) && ctx.Err() == nil:
		if s.Adapters != nil && time.Since(s.quiet) < heartbeatInterval {
			return nil
		}
		s.quiet = time.Now()
		return s.To.Heartbeat(u.Seq())
	default:
		return err
	}
	for i := range events {
		if err := s.record(ctx, &events[i]); err != nil {
			return err
		}
	}
	return nil
}

// record writes a record, after a description of its namespace if that is new.
func (s *Stream) record(ctx context.Context, e *store.Event) error {
	number, described := s.numbers[e.ID.Namespace]
	if !described {
		number = uint32(len(s.numbers))
		if err := s.describe(ctx, number, e.ID.Namespace); err != nil {
			return err
		}
	}
	return s.To.Record(e.Seq, Record{
		Removed: e.Kind == store.EventRemoved, Shard: e.ID.Shard, Namespace: number, Key: e.ID.Key, Parent: e.Parent,
	})
}

// describe writes what a namespace is, and gives it a number.
func (s *Stream) describe(ctx context.Context, number uint32, ns connector.NamespaceDigest) error {
	if number == MaxNamespaces {
		return fmt.Errorf("more than %d namespaces: %w", MaxNamespaces, store.ErrLagged)
	}
	m, err := s.manifest(ctx, ns)
	if err != nil {
		return err
	}
	s.numbers[ns] = number
	return s.To.Namespace(Namespace{Number: number, Digest: ns, Manifest: m})
}

// manifest finds a namespace's manifest. It is empty if it is lost.
func (s *Stream) manifest(ctx context.Context, ns connector.NamespaceDigest) ([]byte, error) {
	m, known := s.manifests.Of(s.Source, ns)
	switch {
	case len(m) > 0 || known && s.Manifest == nil:
		return m, nil
	case s.Manifest == nil:
		return nil, fmt.Errorf("namespace %v is not known to its store", ns)
	}
	m, err := s.Manifest(ctx, ns)
	switch {
	case errors.Is(err, store.ErrGone):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("describe a namespace: %w", err)
	}
	return m, nil
}

// End tells the reader that the stream ends because of err, or, if stopping, because the store's process
// stops.
func (s *Stream) End(err error, stopping bool) {
	code := "error"
	switch {
	case stopping || errors.Is(err, store.ErrClosed):
		code, err = "stopping", errors.New("the daemon is stopping")
	case errors.Is(err, store.ErrLagged):
		code = "lagged"
	}
	_ = s.To.End(code, err.Error()) // the reader may have gone
}

// Source is a store whose residency is told; see [disk.Store].
type Source interface {
	store.Events
	// Namespaces describes the namespaces that records belong to.
	Namespaces() []store.NamespaceInfo
}

// Manifests are the canonical JSON of a source's namespaces, empty where the store has lost it.
type Manifests map[connector.NamespaceDigest][]byte

// ReadManifests lists a source's namespaces. There may be 65,536 of them: read them once for many.
func ReadManifests(s Source) Manifests {
	all := make(Manifests)
	for _, n := range s.Namespaces() {
		all[n.Digest] = n.Manifest
	}
	return all
}

// Of is the manifest of a namespace of s, which may be newer than what was read; m may be nil. It is unknown
// if s does not list the namespace.
func (m Manifests) Of(s Source, ns connector.NamespaceDigest) (manifest []byte, known bool) {
	if manifest, known = m[ns]; !known {
		manifest, known = ReadManifests(s)[ns]
	}
	return manifest, known
}
