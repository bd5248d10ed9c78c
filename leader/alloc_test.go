package leader

import (
	"strconv"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// fullIndex has every record and allocates nothing.
type fullIndex struct{ leases int }

func (x *fullIndex) Lookup(_ connector.NamespaceDigest, _ []connector.Shard, chain []connector.Key, _ time.Duration) (int, store.LeaseID) {
	x.leases++
	return len(chain), store.LeaseID(x.leases)
}
func (x *fullIndex) Renew(store.LeaseID, time.Duration) bool { return true }
func (x *fullIndex) Release(store.LeaseID)                   {}
func (x *fullIndex) Touch(connector.NamespaceDigest, connector.Shard, []connector.Key) {
}
func (x *fullIndex) Present(_ connector.NamespaceDigest, _ connector.Shard, _ []connector.Key, at []bool) {
	for i := range at {
		at[i] = true
	}
}
func (x *fullIndex) PayloadBytes(connector.NamespaceDigest, connector.Shard) int { return 1 << 16 }

func newFullLeader(tb testing.TB, change func(*Options)) *Leader {
	x := new(fullIndex)
	tiers := testTiers{speeds: speeds{DiskBytesPerS: 1e9, DiskLatencyS: 1e-4}}
	o := Options{Manifest: testManifest(), MaxRequests: 8, Levels: tiers.levels(), PrefillTokensPerS: 1000}
	o.Manifest.BlockSize = 16
	if change != nil {
		change(&o)
	}
	l, err := New(o, x)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// newRequests calls match with a new request each time, whose tokens differ from the first.
func newRequests(tb testing.TB, l *Leader, m connector.MatchRequest) func() {
	ids := make([]string, 1000)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	n := 0
	return func() {
		n++
		m.Request = ids[n%len(ids)]
		m.Tokens[0] = uint32(n)
		if o, err := l.Match(tb.Context(), &m); err != nil || o.Tokens != (len(m.Tokens)-1)/16*16 {
			tb.Fatalf("offer %+v, %v", o, err)
		}
	}
}

func TestMatchOfANewRequestDoesNotAllocate(t *testing.T) {
	image := []connector.Span{{Start: 100, End: 900, ID: []byte("image")}}
	for _, tc := range []struct {
		name   string
		change func(*Options)
		m      connector.MatchRequest
	}{
		{"long prompt", nil, connector.MatchRequest{Tokens: make([]uint32, 131072)}},
		{"scope and spans", nil, connector.MatchRequest{Tokens: make([]uint32, 2048), Scope: connector.Scope{Salt: "s", LoRA: "l"}, Spans: image}},
		{"tiers and a trace", nil, connector.MatchRequest{Tokens: make([]uint32, 2048), Tiers: true, Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
		{"slow disk and windows", func(o *Options) {
			o.Manifest.Groups = append(o.Manifest.Groups, connector.Group{Layers: 1, Window: 256})
			o.PrefillTokensPerS = 125_000
		}, connector.MatchRequest{Tokens: make([]uint32, 2048)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			match := newRequests(t, newFullLeader(t, tc.change), tc.m)
			for range 200 {
				match()
			}
			if n := testing.AllocsPerRun(50, match); n != 0 {
				t.Errorf("%v allocations a match, want 0", n)
			}
		})
	}
}

func BenchmarkMatch(b *testing.B) {
	match := newRequests(b, newFullLeader(b, nil), connector.MatchRequest{Tokens: make([]uint32, 131072)})
	for b.Loop() {
		match()
	}
}
