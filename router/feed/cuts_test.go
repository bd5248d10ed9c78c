package feed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/residency"
)

// modelStore has blocks of two shards in two namespaces, and tells what comes and goes.
type modelStore struct {
	rng   *rand.Rand
	epoch uint64
	seq   uint64
	// log are the last events, seq the number of the last one.
	log    []residency.Record
	has    map[modelShard]bool
	blocks []modelBlock // parents first
}

type modelBlock struct {
	namespace   uint32
	key, parent connector.Key
	up          int // index of the parent, -1 for a root
}

type modelShard struct {
	block int
	shard connector.Shard
}

var fullShards = []connector.Shard{0, 2}

func newModelStore(rng *rand.Rand) *modelStore {
	s := &modelStore{rng: rng, epoch: 1, has: make(map[modelShard]bool)}
	root := connector.RootKey(testBlockSize, connector.Scope{})
	for i := range 60 {
		b := modelBlock{namespace: uint32(i % 2), parent: root, up: -1}
		if i > 6 && rng.IntN(8) > 0 {
			b.up = rng.IntN(i/2)*2 + i%2
			if b.up >= i {
				b.up -= 2
			}
			b.parent = s.blocks[b.up].key
		}
		binary.LittleEndian.PutUint64(b.key[:], uint64(i)+1)
		s.blocks = append(s.blocks, b)
	}
	return s
}

func (s *modelStore) record(at modelShard, removed bool) residency.Record {
	b := &s.blocks[at.block]
	r := residency.Record{Removed: removed, Shard: at.shard, Namespace: b.namespace, Key: b.key}
	if !removed {
		r.Parent = b.parent
	}
	return r
}

// step stores or removes a shard. A block goes only after the blocks that follow it.
func (s *modelStore) step() {
	at := modelShard{s.rng.IntN(len(s.blocks)), fullShards[s.rng.IntN(2)]}
	if s.has[at] {
		for i := range s.blocks {
			if s.blocks[i].up == at.block && (s.has[modelShard{i, 0}] || s.has[modelShard{i, 2}]) {
				return
			}
		}
	}
	removed := s.has[at]
	s.has[at] = !removed
	s.seq++
	s.log = append(s.log, s.record(at, removed))
}

// complete reports whether all shards of a block and of those before it are there.
func (s *modelStore) complete(i int) bool {
	for ; i >= 0; i = s.blocks[i].up {
		if !s.has[modelShard{i, 0}] || !s.has[modelShard{i, 2}] {
			return false
		}
	}
	return true
}

// stream is one connection's stream: from a position if what followed is kept, else a snapshot, and some events
// that happen meanwhile.
func (s *modelStore) stream(t *testing.T, from residency.Position) []byte {
	var b bytes.Buffer
	w := residency.NewWriter(&b)
	numbers := make(map[uint32]uint32)
	write := func(seq uint64, r residency.Record) {
		number, known := numbers[r.Namespace]
		if !known {
			number = uint32(len(numbers))
			numbers[r.Namespace] = number
			if err := modelNamespace(r.Namespace, number)(w); err != nil {
				t.Fatal(err)
			}
		}
		r.Namespace = number
		_ = w.Record(seq, r)
	}
	s.log = s.log[max(0, len(s.log)-64):]
	first := s.seq + 1 - uint64(len(s.log))
	resumed := from.Epoch == s.epoch && from.Seq+1 >= first && from.Seq <= s.seq
	_ = w.Hello(residency.Hello{Epoch: s.epoch, Resumed: resumed})
	next := from.Seq + 1
	if !resumed {
		var all []modelShard
		for at, there := range s.has {
			if there {
				all = append(all, at)
			}
		}
		slices.SortFunc(all, func(a, b modelShard) int { return (a.block-b.block)*4 + int(a.shard) - int(b.shard) })
		s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		end := s.seq
		for _, at := range all {
			write(0, s.record(at, false))
		}
		_ = w.SnapshotEnd(end)
		next = end + 1
	}
	for range 1 + s.rng.IntN(5) {
		for range s.rng.IntN(12) {
			s.step()
		}
		for ; next <= s.seq; next++ {
			write(next, s.log[len(s.log)-1-int(s.seq-next)])
		}
		if s.rng.IntN(3) == 0 {
			_ = w.Heartbeat(s.seq)
		}
		_ = w.Flush()
	}
	return b.Bytes()
}

func modelNamespace(n, number uint32) part {
	m := streamManifest(testBlockSize)
	m.Model += string(rune('a' + n))
	namespace := residency.Namespace{Number: number, Digest: m.Digest(), Manifest: m.Canonical()}
	return func(w *residency.Writer) error { return w.Namespace(namespace) }
}

// Wherever a connection breaks, and whatever happens until the next one, the view is the store in the end: a stream
// that resumes neither repeats nor leaves out anything.
func TestConnectionsMayBreakAnywhere(t *testing.T) {
	rng := seed.Random(t, 17)
	resumed := uint64(0)
	for range 40 {
		s := newModelStore(rng)
		o := residencyOptions()
		o.Holder = func(_ connector.NamespaceDigest, m *connector.Manifest) (Holder, bool) {
			return Holder(m.Model[len(m.Model)-1] - 'a'), true
		}
		f, x := newResidency(t, o)
		follow := func(b []byte) error {
			r := residency.NewReader(bytes.NewReader(b), f.position())
			for {
				frame, err := r.Next()
				if err == nil {
					err = f.apply(frame, r.Position())
				}
				if err != nil {
					f.broken(err)
					return err
				}
			}
		}
		for range 30 {
			switch rng.IntN(12) {
			case 0: // another process
				s.epoch++
				s.seq, s.log = 0, nil
			case 1:
				for range rng.IntN(100) {
					s.step()
				}
			case 2:
				f.forget()
			}
			b := s.stream(t, f.position())
			if rng.IntN(2) == 0 {
				b = b[:rng.IntN(len(b)+1)]
			}
			if err := follow(b); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
			f.mu.Lock()
			f.stats.Connected = false
			f.mu.Unlock()
		}
		if err := follow(s.stream(t, f.position())); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		for n := range Holder(2) {
			var want []connector.Key
			for i := range s.blocks {
				if s.blocks[i].namespace == uint32(n) && s.complete(i) {
					want = append(want, s.blocks[i].key)
				}
			}
			wantKeys(t, x, n, want...)
		}
		st := f.Stats()
		if resumed += st.Resumed; st.Gaps+st.Malformed > 0 || t.Failed() {
			t.Fatalf("%+v", st)
		}
	}
	if resumed < 200 {
		t.Errorf("%d of 1,200 streams were resumed", resumed)
	}
}
