package residency_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/residency"
)

func ns(n int) (d connector.NamespaceDigest) {
	binary.LittleEndian.PutUint64(d[:], uint64(n)+1)
	return d
}

// script is a store with a snapshot as of event 5, and its subscription.
type script struct {
	store.Subscription
	snapshot []store.Resident
	events   []store.Event
	seq      uint64
	slow     time.Duration // each record of the snapshot takes
	fail     error         // after the events; nil waits
}

func (s *script) Epoch() uint64                                          { return 7 }
func (s *script) Seq() uint64                                            { return s.seq }
func (s *script) Subscribe(context.Context) (store.Subscription, error)  { return s, nil }
func (s *script) SubscribeAfter(_, _ uint64) (store.Subscription, error) { return s, nil }

// Namespaces are two, the other ones are unknown.
func (s *script) Namespaces() []store.NamespaceInfo {
	return []store.NamespaceInfo{{Digest: ns(0), Manifest: []byte("zero")}, {Digest: ns(1), Manifest: []byte("one")}}
}

func (s *script) Snapshot(ctx context.Context, f func(store.Resident) error) error {
	for _, r := range s.snapshot {
		time.Sleep(s.slow)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := f(r); err != nil {
			return err
		}
	}
	return nil
}

func (s *script) Next(ctx context.Context) ([]store.Event, error) {
	if len(s.events) > 0 {
		events := s.events
		s.events, s.seq = nil, events[len(events)-1].Seq
		return events, nil
	}
	if s.fail != nil {
		return nil, s.fail
	}
	<-ctx.Done()
	return nil, fmt.Errorf("wait for events: %w", store.ErrTimeout)
}

// run runs a stream of s for a time, and returns what its reader reads and what ended it.
func (s *script) run(t *testing.T, resumed bool, life time.Duration) ([]any, error) {
	t.Helper()
	var b bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), life)
	defer cancel()
	stream := &residency.Stream{
		Source: s, To: residency.NewWriter(&b), SnapshotTimeout: time.Minute,
	}
	stream.End(stream.Run(ctx, s, resumed), ctx.Err() != nil)
	frames, err := read(residency.NewReader(&b, residency.Position{Epoch: 7, Seq: 5}))
	if !errors.Is(err, residency.ErrEnded) {
		t.Errorf("the stream ends with %v", err)
	}
	return frames, err
}

func id(n int, shard connector.Shard) store.RecordID {
	return store.RecordID{Namespace: ns(n), Shard: shard, Key: key(byte(n))}
}

// A namespace is described before its first record, once.
func TestAStreamTellsSnapshotEventsAndSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{
			seq:      5,
			snapshot: []store.Resident{{ID: id(1, 3), Parent: key(9)}, {ID: id(0, 0)}},
			events: []store.Event{
				{Seq: 6, Kind: store.EventStored, ID: id(0, 1), Parent: key(8)},
				{Seq: 7, Kind: store.EventRemoved, ID: id(1, 3)},
			},
		}
		got, err := s.run(t, false, 35*time.Second)
		want := []any{
			residency.Hello{Epoch: 7},
			"namespace 0", residency.Record{Shard: 3, Namespace: 0, Key: key(1), Parent: key(9)},
			"namespace 1", residency.Record{Namespace: 1},
			residency.SnapshotEnd{},
			residency.Record{Shard: 1, Namespace: 1, Parent: key(8)},
			residency.Record{Removed: true, Shard: 3, Namespace: 0, Key: key(1)},
			nil, nil, nil, // after 10, 20 and 30 s
		}
		if !slices.Equal(named(got), want) || !strings.Contains(err.Error(), "stopping") {
			t.Errorf("%v\ngot  %+v\nwant %+v", err, named(got), want)
		}
	})
}

// named are frames that can be compared.
func named(frames []any) (list []any) {
	for _, f := range frames {
		if n, ok := f.(residency.Namespace); ok {
			f = fmt.Sprint("namespace ", n.Number)
		}
		list = append(list, f)
	}
	return list
}

func TestAResumedStreamHasNoSnapshot(t *testing.T) {
	s := &script{seq: 5, events: []store.Event{{Seq: 6, Kind: store.EventStored, ID: id(0, 1)}}, fail: store.ErrClosed}
	got, err := s.run(t, true, time.Minute)
	want := []any{residency.Hello{Epoch: 7, Resumed: true}, "namespace 0", residency.Record{Shard: 1}}
	if !slices.Equal(named(got), want) || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, named(got), want)
	}
}

func TestReadersLearnWhyAStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		many := make([]store.Resident, 100)
		for i := range many {
			many[i].ID = id(0, connector.Shard(i))
		}
		for name, c := range map[string]struct {
			s    *script
			want string
		}{
			"a reader that fell behind":   {&script{seq: 5, fail: fmt.Errorf("events after 3: %w", store.ErrLagged)}, "lagged"},
			"a slow reader":               {&script{seq: 5, snapshot: many, slow: time.Second}, "lagged: read the snapshot: the snapshot was read too slowly"},
			"a store that closes":         {&script{seq: 5, fail: store.ErrClosed}, "stopping"},
			"a store that fails":          {&script{seq: 5, fail: store.ErrIO}, "error"},
			"a namespace nobody knows of": {&script{seq: 5, snapshot: []store.Resident{{ID: id(2, 0)}}}, "is not known to its store"},
		} {
			if _, err := c.s.run(t, false, time.Hour); !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A stream numbers 65,536 namespaces; then the reader has to begin again.
func TestAStreamWithTooManyNamespacesEnds(t *testing.T) {
	const all = 1 << 16
	s := &inOrder{script: script{seq: 5, fail: store.ErrClosed}}
	for n := range all + 1 {
		s.snapshot = append(s.snapshot, store.Resident{ID: id(n, 0)})
	}
	var b bytes.Buffer
	stream := &residency.Stream{Source: s, To: residency.NewWriter(&b), SnapshotTimeout: time.Minute}
	if err := stream.Run(t.Context(), s, false); !errors.Is(err, store.ErrLagged) {
		t.Error(err)
	}
	stream.End(store.ErrLagged, false)
	frames, _ := read(residency.NewReader(&b, residency.Position{}))
	if n := len(frames); n != 1+2*all {
		t.Fatalf("%d frames and records", n)
	}
	for i := range all {
		if n, ok := frames[1+2*i].(residency.Namespace); !ok || n.Number != uint32(i) || n.Digest != ns(i) {
			t.Fatalf("%+v is not namespace %d", frames[1+2*i], i)
		}
	}
}

// all knows all of its namespaces, and counts how often it is asked for them.
type all struct {
	script
	asked int
}

func (s *all) Namespaces() (list []store.NamespaceInfo) {
	s.asked++
	for _, r := range s.snapshot {
		list = append(list, store.NamespaceInfo{Digest: r.ID.Namespace})
	}
	return list
}

// A snapshot of many namespaces does not list them for each of them.
func TestASnapshotListsTheNamespacesOnce(t *testing.T) {
	s := &all{script: script{seq: 5, fail: store.ErrClosed}}
	for n := range 100 {
		s.snapshot = append(s.snapshot, store.Resident{ID: id(n, 0)})
	}
	var b bytes.Buffer
	stream := &residency.Stream{Source: s, To: residency.NewWriter(&b), SnapshotTimeout: time.Minute}
	if err := stream.Run(t.Context(), s, false); !errors.Is(err, store.ErrClosed) || s.asked != 1 {
		t.Errorf("%v, asked %d times", err, s.asked)
	}
}

// inOrder knows of each namespace when it is its turn.
type inOrder struct {
	script
	next int
}

func (s *inOrder) Namespaces() []store.NamespaceInfo {
	s.next++
	return []store.NamespaceInfo{{Digest: ns(s.next - 1)}}
}

// Of a namespace that a store does not list the manifest is read. One that is lost is empty; one that cannot be read
// for now ends the stream. A resumed stream may tell of removals in a namespace that has no records left.
func TestAStreamReadsManifestsThatItsStoreDoesNotList(t *testing.T) {
	for name, c := range map[string]struct {
		manifest []byte
		err      error
		want     []any
		end      string
	}{
		"read":           {[]byte("two"), nil, []any{"two", residency.Record{Removed: true, Key: key(2)}}, "stopping"},
		"lost":           {nil, fmt.Errorf("no manifest: %w", store.ErrGone), []any{"", residency.Record{Removed: true, Key: key(2)}}, "stopping"},
		"not to be read": {nil, store.ErrIO, nil, "error: describe a namespace"},
	} {
		s := &script{seq: 5, events: []store.Event{{Seq: 6, Kind: store.EventRemoved, ID: id(2, 0)}}, fail: store.ErrClosed}
		var b bytes.Buffer
		stream := &residency.Stream{
			Source: s, To: residency.NewWriter(&b), SnapshotTimeout: time.Minute,
			Manifest: func(_ context.Context, d connector.NamespaceDigest) ([]byte, error) {
				if d != ns(2) {
					t.Errorf("%s: asked for %v, which is listed", name, d)
				}
				return c.manifest, c.err
			},
		}
		stream.End(stream.Run(t.Context(), s, true), false)
		frames, err := read(residency.NewReader(&b, residency.Position{Epoch: 7, Seq: 5}))
		for i := range frames {
			if n, ok := frames[i].(residency.Namespace); ok {
				frames[i] = string(n.Manifest)
			}
		}
		if !slices.Equal(frames[1:], c.want) || !strings.Contains(err.Error(), c.end) {
			t.Errorf("%s: %+v, %v", name, frames, err)
		}
	}
}
