package leader

import (
	"encoding/json"
	"fmt"
	"math"
	mathbits "math/bits"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader/pricing"
	"github.com/kvconn/kvconn/leader/sources"
	"github.com/kvconn/kvconn/store"
)

// keyedFixture is a leader without hashing, with 4-token blocks on an empty index.
type keyedFixture struct {
	*testing.T
	*Keyed
	x     *testIndex
	clock *clock
}

func newKeyedFixture(t *testing.T, change func(*Options)) *keyedFixture {
	t.Helper()
	f := &keyedFixture{T: t, x: newTestIndex(), clock: &clock{time.Unix(1000, 0)}}
	o := Options{Namespace: testNamespace, Manifest: testManifest(), Now: f.clock.Now}
	if change != nil {
		change(&o)
	}
	o.Manifest.KeyScheme = connector.KeySchemeEngine
	k, err := NewKeyed(o, f.x)
	if err != nil {
		t.Fatal(err)
	}
	f.Keyed = k
	return f
}

// hashes are those of blocks first to end of a prompt.
func hashes(first, end int) []connector.Proof {
	var out []connector.Proof
	for i := first; i < end; i++ {
		out = append(out, connector.Proof{byte(i >> 8), byte(i), 1})
	}
	return out
}

// store puts blocks of a group into the index, with all shards.
func (f *keyedFixture) store(group int, blocks ...int) {
	for _, i := range blocks {
		for _, s := range f.groups[group].Shards {
			f.x.records[store.RecordID{Namespace: testNamespace, Shard: s, Key: connector.EngineKey(hashes(i, i+1)[0])}] = true
		}
	}
}

// present returns the bits of each group as a string, of hashes [first, end).
func (f *keyedFixture) present(m connector.PresentRequest, end int) string {
	f.Helper()
	m.Hashes = hashes(m.First, end)
	out := ""
	for g, bits := range f.Present(&m, nil) {
		if g > 0 {
			out += " "
		}
		for i := range m.Hashes {
			out += fmt.Sprint(bits[i/8] >> (i % 8) & 1)
		}
		if want := (len(m.Hashes) + 7) / 8; len(bits) != want {
			f.Errorf("%d bytes of bits, want %d", len(bits), want)
		}
	}
	return out
}

func (f *keyedFixture) wantPresent(want string, m connector.PresentRequest, end int) {
	f.Helper()
	if got := f.present(m, end); got != want {
		f.Errorf("%+v: %s is offered, want %s", m, got, want)
	}
}

func TestKeyedOffersWhatIsThere(t *testing.T) {
	f := newKeyedFixture(t, nil)
	f.wantPresent("0000", connector.PresentRequest{Request: "a"}, 4)
	f.store(0, 0, 1, 2, 5, 7, 8, 9)
	// After a gap, which the engine may hold itself, what is there is offered too.
	f.wantPresent("1110010111", connector.PresentRequest{Request: "a"}, 10)
	if n := f.x.pinned(); n != 7 {
		t.Errorf("%d blocks are pinned, want the 7 that are offered", n)
	}
	f.wantPresent("0010010111", connector.PresentRequest{Request: "a", Held: 2}, 10)
	f.wantPresent("10010111", connector.PresentRequest{Request: "a", First: 2, Held: 1}, 10)
	f.wantPresent("0000000000", connector.PresentRequest{Request: "a", NoLoad: true}, 10)
	f.wantPresent("0000000000", connector.PresentRequest{Request: "a", Held: 99}, 10)
	f.wantPresent("", connector.PresentRequest{Request: "a"}, 0)
	if n := f.x.held(); n != 0 {
		t.Errorf("%d leases for offers of nothing", n)
	}
	if s := f.Stats(); s.Requests != 1 || s.Matches != 7 || s.MatchedRequests != 1 || s.QueriedTokens != 16 || s.OfferedTokens != 0 {
		t.Errorf("%+v", s)
	}
	f.wantPresent("1110010111", connector.PresentRequest{Request: "b"}, 10)
	if s := f.Stats(); s.MatchedRequests != 2 || s.QueriedTokens != 56 || s.OfferedTokens != 28 || s.DecisionsFull != 2 {
		t.Errorf("%+v", s)
	}
	f.wantPresent("0010010111", connector.PresentRequest{Request: "c", Held: 2}, 10)
	f.wantPresent("10010111", connector.PresentRequest{Request: "d", First: 2, Held: 1}, 10)
	f.wantPresent("0000000000", connector.PresentRequest{Request: "e", Held: 99}, 10)
	if s := f.Stats(); s.QueriedTokens != 56+32+32 || s.EngineTokens != 8+8+40 {
		t.Errorf("%d tokens queried, the engine had %d", s.QueriedTokens, s.EngineTokens)
	}
	f.SetReady(false)
	f.wantPresent("0000000000", connector.PresentRequest{Request: "b"}, 10)
	if s := f.Stats(); s.NotReady != 1 {
		t.Errorf("%+v", s)
	}
}

// A block whose shard of one rank is missing is not there.
func TestKeyedOffersWhatAllRanksHave(t *testing.T) {
	f := newKeyedFixture(t, func(o *Options) { o.Manifest.TensorParallel = 2 })
	f.store(0, 0, 1, 2, 3, 4)
	delete(f.x.records, store.RecordID{Namespace: testNamespace, Shard: f.groups[0].Shards[1], Key: connector.EngineKey(hashes(2, 3)[0])})
	f.wantPresent("11011", connector.PresentRequest{Request: "a"}, 5)
}

// Of a window only what the boundary needs is offered, and nothing where it is not there.
func TestKeyedWindows(t *testing.T) {
	// A window of 5 tokens reaches back over one block of 4.
	f := newKeyedFixture(t, func(o *Options) {
		o.Manifest.Groups = []connector.Group{{Layers: 1}, {Layers: 1, Window: 5}}
	})
	f.store(0, 0, 1, 2, 3, 4, 5, 7)
	f.wantPresent("00000000 00000000", connector.PresentRequest{Request: "a"}, 8)
	f.store(1, 3)
	f.wantPresent("11110000 00010000", connector.PresentRequest{Request: "a"}, 8)
	f.store(1, 5, 6, 7)
	f.wantPresent("11111101 00000111", connector.PresentRequest{Request: "a"}, 8)
	only := newKeyedFixture(t, func(o *Options) { o.Manifest.Groups = []connector.Group{{Layers: 1, Window: 5}} })
	only.store(0, 1, 4)
	only.wantPresent("000010", connector.PresentRequest{Request: "a"}, 6)
}

func TestKeyedOffersWhatIsWorthLoading(t *testing.T) {
	disk := speeds{DiskBytesPerS: 1000} // a second for a block
	change := func(o *Options) {
		tiers := testTiers{speeds: disk}
		o.Levels, o.PrefillTokensPerS = tiers.levels(), 1000
	}
	f := newKeyedFixture(t, change)
	f.store(0, 0, 1, 2, 3, 5)
	f.wantPresent("000000", connector.PresentRequest{Request: "a"}, 6)
	if s := f.Stats(); s.DecisionsRefused != 1 || !s.TierRefused || f.x.held() != 0 {
		t.Errorf("%+v, %d leases", s, f.x.held())
	}
	disk.DiskBytesPerS = 1e9
	f = newKeyedFixture(t, change)
	f.store(0, 0, 1, 2, 3, 5)
	f.wantPresent("111101", connector.PresentRequest{Request: "a"}, 6)
	f = newKeyedFixture(t, func(o *Options) { o.MinOfferTokens = 20 })
	f.store(0, 0, 1, 2, 3)
	f.wantPresent("000000", connector.PresentRequest{Request: "a"}, 6)
	f.store(0, 4)
	f.wantPresent("111110", connector.PresentRequest{Request: "a"}, 6)
}

// What is there after a gap is worth loading or not like the rest, and is asked for again once its
// tier has become faster.
func TestKeyedPricesWhatComesAfterGaps(t *testing.T) {
	tiers, probes := testTiers{speeds: speeds{DiskBytesPerS: 1000}}, 0 // a second for a block
	f := newKeyedFixture(t, func(o *Options) {
		o.Levels, o.PrefillTokensPerS, o.Probe = tiers.levels(), 1000, func() { probes++ }
	})
	f.store(0, 1, 2, 3, 5)
	f.wantPresent("000000", connector.PresentRequest{Request: "a"}, 6)
	if s := f.Stats(); !s.TierRefused || probes != 1 || f.x.held() != 0 {
		t.Errorf("%+v, %d probes, %d leases", s, probes, f.x.held())
	}
	tiers.speeds.DiskBytesPerS = 1e9
	f.wantPresent("011101", connector.PresentRequest{Request: "a"}, 6)
	if f.Stats().TierRefused {
		t.Error("all is offered, and still something is refused")
	}
}

// Tokens count by the tier that they are offered from, with what comes after a gap.
func TestKeyedCountsWhereTokensComeFrom(t *testing.T) {
	tiers := testTiers{host: map[connector.Key]bool{}, speeds: speeds{DiskBytesPerS: 1e9}}
	f := newKeyedFixture(t, func(o *Options) { o.Levels, o.PrefillTokensPerS = tiers.levels(), 1000 })
	f.store(0, 0, 1, 2, 4, 5, 7)
	for _, i := range []int{0, 1, 4} {
		tiers.host[connector.EngineKey(hashes(i, i+1)[0])] = true
	}
	f.wantPresent("011011010", connector.PresentRequest{Request: "a", Held: 1}, 9)
	s := f.Stats()
	if want := (sources.Stats{HostTokens: 8, DiskTokens: 12, ComputedTokens: 12}); s.Stats != want || s.EngineTokens != 4 {
		t.Errorf("%+v, the engine had %d; want %+v", s.Stats, s.EngineTokens, want)
	}
}

func fetch(id, of string, blocks int) *connector.KeyedMove {
	return &connector.KeyedMove{ID: id, Request: of, Parts: []connector.KeyedPart{{Hashes: hashes(0, blocks), Slots: make([]uint32, blocks)}}}
}

func finished(id string, failed ...uint32) []connector.FinishedLoad {
	return []connector.FinishedLoad{{Request: id, FailedBlocks: failed}}
}

func TestKeyedRemembersFailedRequests(t *testing.T) {
	f := newKeyedFixture(t, nil)
	f.store(0, 0, 1)
	f.wantPresent("11", connector.PresentRequest{Request: "a"}, 2)
	f.Loading(fetch("1", "a", 2))
	f.Loading(fetch("2", "a", 1))
	f.Loaded(finished("1"))
	if f.x.held() == 0 {
		t.Error("nothing is pinned for the load that goes on")
	}
	f.Loaded(finished("2", 7))
	if f.x.held() != 0 {
		t.Error("leases outlast the loads")
	}
	f.Loaded(finished("2", 7))
	f.Loaded(finished("nobody's", 7))
	f.wantPresent("00", connector.PresentRequest{Request: "a"}, 2)
	if s := f.Stats(); s.FailedLoads != 1 || s.LoadTokens != 12 {
		t.Errorf("%+v", s)
	}
	// A load that was never offered is remembered as well, under its own id.
	f.Loading(fetch("b", "", 1))
	f.Loaded(finished("b", 1))
	f.wantPresent("00", connector.PresentRequest{Request: "b"}, 2)
	// What is cancelled has not failed.
	for _, end := range []func(){func() { f.Cancelled("c") }, f.Unregistered} {
		f.Loading(fetch("c", "", 1))
		end()
		f.Loaded(finished("c", 1))
	}
	f.wantPresent("11", connector.PresentRequest{Request: "c"}, 2)
	f.Close()
	f.wantPresent("00", connector.PresentRequest{Request: "c"}, 2)
	if f.x.held() != 0 {
		t.Error("leases outlast the leader")
	}
}

func TestTouchEndsARequest(t *testing.T) {
	f := newKeyedFixture(t, func(o *Options) {
		o.Manifest.Groups = []connector.Group{{Layers: 1}, {Layers: 1, Window: 8}}
		o.Manifest.TensorParallel = 2
	})
	f.store(0, 0, 1)
	f.store(1, 0, 1)
	f.present(connector.PresentRequest{Request: "a"}, 2)
	f.Loading(fetch("a", "", 2))
	f.Loaded(finished("a", 1))
	for range pricing.MinSamples {
		f.Touch(&connector.TouchRequest{Request: "a", Hashes: hashes(0, 2), Tokens: 1000, Seconds: 0.5})
	}
	f.Touch(&connector.TouchRequest{Request: "small", Tokens: 10, Seconds: 10})
	f.Touch(&connector.TouchRequest{Request: "unseen", Tokens: 1000})
	if s := f.Stats(); s.Requests != 0 || math.Round(s.PrefillTokensPerS) != 2000 || f.x.held() != 0 {
		t.Errorf("%+v, %d leases", s, f.x.held())
	}
	if n := len(f.x.touched); n != 8 {
		t.Errorf("%d records are touched, want those of 2 blocks, 2 groups and 2 ranks", n)
	}
	f.wantPresent("11 11", connector.PresentRequest{Request: "a"}, 2)
}

// A request that ended and comes back is another: what a load of the former one does is not its.
func TestRequestThatComesBackIsAnother(t *testing.T) {
	f := newKeyedFixture(t, nil)
	f.store(0, 0, 1)
	f.Loading(fetch("former", "a", 0))
	f.Touch(&connector.TouchRequest{Request: "a"})
	f.wantPresent("11", connector.PresentRequest{Request: "a"}, 2)
	f.Loading(fetch("own", "a", 2))
	f.Loaded(finished("former", 7))
	if n := f.x.pinned(); n != 2 {
		t.Errorf("%d blocks are pinned for the load that goes on, want 2", n)
	}
	f.Loaded(finished("own"))
	f.wantPresent("11", connector.PresentRequest{Request: "a"}, 2)
}

// A prefill that took next to no time is no measurement: the speed would be infinite, which no JSON has.
func TestSpeedsThatCannotBeAreNotLearnt(t *testing.T) {
	f := newKeyedFixture(t, nil)
	for range pricing.MinSamples {
		f.Touch(&connector.TouchRequest{Request: "a", Tokens: math.MaxInt32, Seconds: math.SmallestNonzeroFloat64})
	}
	if _, err := json.Marshal(f.Stats()); err != nil || f.Stats().PrefillTokensPerS != 0 {
		t.Errorf("%v tokens/s, %v", f.Stats().PrefillTokensPerS, err)
	}
}

func TestKeyedForgetsTheOldestRequest(t *testing.T) {
	f := newKeyedFixture(t, func(o *Options) { o.MaxRequests = 3 })
	f.store(0, 0)
	for i := range 10 {
		f.present(connector.PresentRequest{Request: fmt.Sprint(i)}, 1)
		f.present(connector.PresentRequest{Request: "often"}, 1)
	}
	if s := f.Stats(); s.Requests != 3 || f.x.held() != 3 || s.MatchedRequests != 11 {
		t.Errorf("%+v, %d leases", s, f.x.held())
	}
}

// However many runs there are after a gap, what is offered is pinned.
func TestKeyedPinsWhatItOffersAfterGaps(t *testing.T) {
	f := newKeyedFixture(t, nil)
	for i := 1; i < 400; i += 2 {
		f.store(0, i)
	}
	offered := 0
	for _, bit := range f.present(connector.PresentRequest{Request: "a"}, 400) {
		offered += int(bit - '0')
	}
	if n := f.x.pinned(); offered != maxStretches || n != offered {
		t.Errorf("%d blocks are offered, %d pinned, want %d", offered, n, maxStretches)
	}
	if n := f.x.held(); n != maxStretches {
		t.Errorf("%d leases are held, want one for each of %d runs", n, maxStretches)
	}
}

// The runs that a request may have pinned are shared out evenly among its layer groups: a load needs all
// of them.
func TestKeyedGroupsShareThePinsAfterGaps(t *testing.T) {
	for _, tc := range []struct{ groups, each int }{{2, maxStretches / 2}, {3, maxStretches / 3}, {connector.MaxGroups, 1}} {
		f := newKeyedFixture(t, func(o *Options) {
			o.Manifest.Groups = slices.Repeat(o.Manifest.Groups[:1], tc.groups)
		})
		for g := range tc.groups {
			for i := 1; i < 40; i += 2 {
				f.store(g, i)
			}
		}
		for g, bits := range f.Present(&connector.PresentRequest{Request: "a", Hashes: hashes(0, 40)}, nil) {
			offered := 0
			for _, b := range bits {
				offered += mathbits.OnesCount8(b)
			}
			if offered != tc.each {
				t.Errorf("%d runs of group %d of %d are offered, want %d", offered, g, tc.groups, tc.each)
			}
		}
		if n := f.x.held(); n != tc.groups*tc.each {
			t.Errorf("%d leases are held for %d groups, want %d", n, tc.groups, tc.groups*tc.each)
		}
	}
}

func TestPresentDoesNotAllocateForEachHash(t *testing.T) {
	for name, x := range map[string]Index{"all there": new(fullIndex), "none": newTestIndex()} {
		o := Options{Manifest: testManifest()}
		o.Manifest.KeyScheme = connector.KeySchemeEngine
		k, err := NewKeyed(o, x)
		if err != nil {
			t.Fatal(err)
		}
		m := connector.PresentRequest{Request: "r", Hashes: hashes(0, 8192)}
		var bits [][]byte
		for range 10 {
			bits = k.Present(&m, bits)
		}
		if n := testing.AllocsPerRun(20, func() { bits = k.Present(&m, bits) }); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

func TestEachLeaderHasItsKeyScheme(t *testing.T) {
	m := testManifest()
	if _, err := NewKeyed(Options{Manifest: m}, newTestIndex()); err == nil {
		t.Error("a leader without hashing for keys of tokens")
	}
	m.KeyScheme = connector.KeySchemeEngine
	if _, err := New(Options{Manifest: m}, newTestIndex()); err == nil {
		t.Error("a leader that hashes for the engine's own keys")
	}
}
