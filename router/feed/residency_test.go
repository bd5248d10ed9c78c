package feed

import (
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// scriptedStore serves the streams of a script, one for each connection; the last one stays open.
type scriptedStore struct {
	mu      sync.Mutex
	streams [][]byte
	queries []string
}

func (s *scriptedStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	stream := s.streams[0]
	last := len(s.streams) == 1
	if !last {
		s.streams = s.streams[1:]
	}
	s.queries = append(s.queries, r.URL.RawQuery)
	s.mu.Unlock()
	_, _ = w.Write(stream)
	if last {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// streamFrame is a frame of these values.
func streamFrame(values ...any) []byte {
	b := msgp.AppendArrayHeader(make([]byte, 4), uint32(len(values)))
	for _, v := range values {
		var err error
		if b, err = msgp.AppendIntf(b, v); err != nil {
			panic(err)
		}
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func streamManifest(blockSize int) *connector.Manifest {
	return &connector.Manifest{
		Engine: "test/1", Model: "m", KVDType: "bfloat16", BlockSize: blockSize, TensorParallel: 2, PipelineParallel: 1,
		Groups: []connector.Group{
			{Layers: 2, KVHeads: 1, HeadSize: 16, Layout: "LBHNC"},
			{Layers: 2, Window: 8, KVHeads: 1, HeadSize: 16, Layout: "LBHNC"},
		},
		KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
}

func streamNamespace(id, blockSize int) []byte {
	m := streamManifest(blockSize)
	text, err := m.Canonical()
	if err != nil {
		panic(err)
	}
	digest, err := m.Digest()
	if err != nil {
		panic(err)
	}
	return streamFrame(residencyNamespace, id, digest[:], text)
}

// record is one record of namespace 0, of both shards that a prefix needs.
func record(kind byte, key, parent connector.Key) (b []byte) {
	for _, shard := range []uint16{0, 2} { // of full attention
		b = binary.LittleEndian.AppendUint16(append(b, kind), shard)
		b = binary.LittleEndian.AppendUint32(b, 0)
		b = append(append(b, key[:]...), parent[:]...)
	}
	return b
}

func hello(epoch int, resumed bool) []byte {
	return streamFrame(residencyHello, residencyVersion, epoch, resumed)
}

// chainRecords are the records of a prompt of these blocks.
func chainRecords(kind byte, blocks ...uint64) (records [][]byte) {
	parent := connector.RootKey(testBlockSize, connector.Scope{})
	for _, k := range keysOf(connector.Scope{}, blocks...) {
		records = append(records, record(kind, k, parent))
		parent = k
	}
	return records
}

func followStore(t *testing.T, streams ...[]byte) (*Residency, *memIndex, *scriptedStore) {
	t.Helper()
	s := &scriptedStore{streams: streams}
	server := httptest.NewServer(s)
	x := newMemIndex()
	x.keyed = true
	f, err := NewResidency(ResidencyOptions{
		URL: server.URL, BlockSize: testBlockSize, Logger: quiet(), ReconnectMin: time.Microsecond, ReconnectMax: time.Millisecond,
		Holder: func(connector.NamespaceDigest, *connector.Manifest) (Holder, bool) { return 1, true },
	}, x)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	background(t, f.Run)
	return f, x, s
}

// A snapshot comes in any order; deltas come with children before their parents.
func TestBlocksFindTheirPlaceInAnyOrder(t *testing.T) {
	a := chainRecords(residencyStored, 1, 2, 3, 4, 5)
	fork := chainRecords(residencyStored, 1, 2, 30, 31)[2:]
	lost := chainRecords(residencyStored, 7, 8)[1:] // its parent comes later
	snapshot := slices.Concat(a[4], fork[1], a[1], lost[0], a[3], a[0], fork[0], a[2])
	late := chainRecords(residencyStored, 7, 8, 9)
	deltas := slices.Concat(late[2], late[0], chainRecords(residencyRemoved, 1, 2, 3, 4, 5)[4])
	f, x, _ := followStore(t, slices.Concat(hello(1, false), streamNamespace(0, testBlockSize),
		streamFrame(residencyRecords, 0, snapshot), streamFrame(residencySnapshotEnd, 10, 16),
		streamFrame(residencyRecords, 11, deltas), streamFrame(residencyHeartbeat, 16)))
	eventually(t, "event 16", func() bool { return f.Stats().LastSeq == 16 })
	want := keysOf(connector.Scope{}, 1, 2, 3, 4)
	want = append(want, keysOf(connector.Scope{}, 1, 2, 30, 31)[2:]...)
	want = append(want, keysOf(connector.Scope{}, 7, 8, 9)...)
	wantKeys(t, x, 1, want...)
	if s := f.Stats(); s.Waiting != 0 || s.Incomplete != 0 || s.State != StateSynced || s.Namespaces != 1 {
		t.Errorf("%+v", s)
	}
}

func TestABlockCountsOnlyWithAllShardsOfFullAttention(t *testing.T) {
	rec := chainRecords(residencyStored, 1)[0]
	first, second := rec[:residencyRecordBytes], rec[residencyRecordBytes:]
	window := slices.Clone(first)
	window[1] = 1 // the other group's shard
	gone := slices.Clone(second)
	gone[0] = residencyRemoved
	for name, c := range map[string]struct {
		records []byte
		held    int
	}{
		"one of two":        {first, 0},
		"a window's":        {slices.Concat(first, window), 0},
		"both":              {slices.Concat(first, second), 1},
		"one gone":          {slices.Concat(first, second, gone), 0},
		"gone and back":     {slices.Concat(first, second, gone, second), 1},
		"a window's not so": {slices.Concat(second, window, first), 1},
	} {
		f, x, _ := followStore(t, slices.Concat(hello(1, false), streamNamespace(0, testBlockSize),
			streamFrame(residencySnapshotEnd, 0, 0), streamFrame(residencyRecords, 1, c.records)))
		eventually(t, name, func() bool { return f.Stats().LastSeq == uint64(len(c.records)/residencyRecordBytes) })
		if got := len(x.keys(1)); got != c.held {
			t.Errorf("%s: %d blocks", name, got)
		}
	}
}

// Whatever is wrong with a stream, the next connection begins with a snapshot.
func TestBrokenStreamsCostASnapshot(t *testing.T) {
	begin := slices.Concat(hello(1, false), streamNamespace(0, testBlockSize), streamFrame(residencySnapshotEnd, 5, 0))
	one := chainRecords(residencyStored, 1)[0]
	good := slices.Concat(hello(2, false), streamNamespace(0, testBlockSize), streamFrame(residencyRecords, 0, one), streamFrame(residencySnapshotEnd, 9, 2))
	foreign := slices.Clone(one)
	foreign[3] = 99
	odd := slices.Clone(one)
	odd[0] = 9
	for name, bad := range map[string][]byte{
		"a gap":                   append(slices.Clone(begin), streamFrame(residencyRecords, 7, one)...),
		"a gap in silence":        append(slices.Clone(begin), streamFrame(residencyHeartbeat, 8)...),
		"a snapshot again":        append(slices.Clone(begin), streamFrame(residencyRecords, 0, one)...),
		"half a record":           append(slices.Clone(begin), streamFrame(residencyRecords, 6, one[:5])...),
		"an unknown namespace":    append(slices.Clone(begin), streamFrame(residencyRecords, 6, foreign)...),
		"a record of no kind":     append(slices.Clone(begin), streamFrame(residencyRecords, 6, odd)...),
		"a frame of 4 GiB":        append(slices.Clone(begin), 0xff, 0xff, 0xff, 0xff),
		"no msgpack":              append(slices.Clone(begin), 1, 0, 0, 0, 0xc1),
		"another hello":           append(slices.Clone(begin), hello(1, false)...),
		"no hello":                streamFrame(residencyHeartbeat, 0),
		"another version":         streamFrame(residencyHello, 2, 1, false),
		"resumed without a cause": hello(1, true),
		"two ends":                append(slices.Clone(begin), streamFrame(residencySnapshotEnd, 5, 0)...),
	} {
		f, x, s := followStore(t, bad, good)
		eventually(t, name, func() bool { return f.Stats().Epoch == 2 && f.Stats().State == StateSynced })
		wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
		if st := f.Stats(); st.Gaps+st.Malformed == 0 {
			t.Errorf("%s: %+v", name, st)
		}
		s.mu.Lock()
		if s.queries[1] != "" {
			t.Errorf("%s: asked for %q", name, s.queries[1])
		}
		s.mu.Unlock()
	}
}

func TestAnEndedStreamIsResumed(t *testing.T) {
	one, two := chainRecords(residencyStored, 1, 2)[0], chainRecords(residencyStored, 1, 2)[1]
	f, x, s := followStore(t,
		slices.Concat(hello(1, false), streamNamespace(0, testBlockSize), streamFrame(residencyRecords, 0, one),
			streamFrame(residencySnapshotEnd, 5, 2), streamFrame(residencyEnd, "stopping", "bye")),
		slices.Concat(hello(1, true), streamNamespace(0, testBlockSize), streamFrame(residencyRecords, 6, two)))
	eventually(t, "event 7", func() bool { return f.Stats().LastSeq == 7 })
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2)...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queries[1] != "after=5&epoch=1" {
		t.Errorf("asked for %q", s.queries[1])
	}
}

func TestNamespacesOfAnotherBlockSizeAreIgnoredAndCounted(t *testing.T) {
	one := chainRecords(residencyStored, 1)[0]
	f, x, _ := followStore(t, slices.Concat(hello(1, false), streamNamespace(0, 2*testBlockSize),
		streamFrame(residencyRecords, 0, one), streamFrame(residencySnapshotEnd, 5, 2)))
	eventually(t, "a snapshot", func() bool { return f.Stats().Snapshots == 1 })
	wantKeys(t, x, 1)
	if s := f.Stats(); s.MismatchedBlockSize != 1 || s.IgnoredNamespaces != 1 || s.Namespaces != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAStoreThatIsGoneIsForgotten(t *testing.T) {
	one := chainRecords(residencyStored, 1)[0]
	server := httptest.NewServer(&scriptedStore{streams: [][]byte{slices.Concat(hello(1, false), streamNamespace(0, testBlockSize),
		streamFrame(residencyRecords, 0, one), streamFrame(residencySnapshotEnd, 5, 2))}})
	x := newMemIndex()
	f, err := NewResidency(ResidencyOptions{
		URL: server.URL, BlockSize: testBlockSize, Logger: quiet(), ForgetAfter: time.Millisecond, ReconnectMax: 5 * time.Millisecond,
		ReconnectMin: time.Millisecond,
		Holder:       func(connector.NamespaceDigest, *connector.Manifest) (Holder, bool) { return 1, true },
	}, x)
	if err != nil {
		t.Fatal(err)
	}
	background(t, f.Run)
	eventually(t, "a block", func() bool { return len(x.keys(1)) == 1 })
	server.CloseClientConnections()
	server.Close()
	eventually(t, "that it is forgotten", func() bool { return len(x.keys(1)) == 0 })
	if s := f.Stats(); s.Connected || s.State != StateConnecting || s.Error == "" {
		t.Errorf("%+v", s)
	}
}

func FuzzResidencyFrame(f *testing.F) {
	f.Add(streamNamespace(0, testBlockSize)[4:])
	f.Add(streamFrame(residencyRecords, 0, chainRecords(residencyStored, 1)[0])[4:])
	f.Add(streamFrame(residencySnapshotEnd, 5, 0)[4:])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := NewResidency(ResidencyOptions{
			URL: "http://h/", BlockSize: testBlockSize, Logger: quiet(), MaxWaiting: 16,
			Holder: func(connector.NamespaceDigest, *connector.Manifest) (Holder, bool) { return 1, true },
		}, newMemIndex())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.frame(hello(1, false)[4:], true); err != nil {
			t.Fatal(err)
		}
		if r.frame(streamNamespace(0, testBlockSize)[4:], false) == nil && r.frame(b, false) == nil {
			_ = r.frame(b, false)
		}
	})
}
