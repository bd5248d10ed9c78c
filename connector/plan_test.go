package connector

import (
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

func testPlan() *Plan {
	return &Plan{
		Namespace: NamespaceDigest{9},
		Loads: []RequestLoad{{Request: "a", Transfers: []Transfer{
			{Group: 1, Parent: Key{1}, Scope: Scope{Salt: "s", LoRA: "l"}.Digest(), Blocks: []PlanBlock{
				{Slot: 7, Key: Key{2}, Proof: Proof{3}}, {Slot: 1 << 31, Key: Key{4}, Proof: Proof{5}},
			}},
		}}, {Request: "", Lost: []uint32{1, 1 << 31}}},
		Saves: []Transfer{{Scope: Scope{Salt: "s"}.Digest(), Blocks: []PlanBlock{{Slot: 1}}}, {Blocks: []PlanBlock{}}},
	}
}

func TestPlanRoundTrip(t *testing.T) {
	want := testPlan()
	got, err := ParsePlan(want.Append(nil))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ParsePlan = %+v, %v; want %+v", got, err, want)
	}
}

func TestPlanRefusesEveryTruncationAndSurplus(t *testing.T) {
	b := testPlan().Append(nil)
	for n := range b {
		if _, err := ParsePlan(b[:n]); !errors.Is(err, ErrPlan) {
			t.Fatalf("plan cut to %d of %d bytes: %v, want ErrPlan", n, len(b), err)
		}
	}
	if _, err := ParsePlan(append(b, 0)); !errors.Is(err, ErrPlan) {
		t.Errorf("plan with a surplus byte: %v, want ErrPlan", err)
	}
}

// A plan of a few bytes an entry must not cost twenty times its size.
func TestPlanOfManySmallEntriesIsRefused(t *testing.T) {
	for name, p := range map[string]Plan{
		"loads":     {Loads: make([]RequestLoad, MaxStepRequests+1)},
		"transfers": {Saves: make([]Transfer, maxTransfers+1)},
		"id":        {Loads: []RequestLoad{{Request: string(make([]byte, MaxIDBytes+1))}}},
	} {
		if _, err := ParsePlan(p.Append(nil)); !errors.Is(err, ErrPlan) {
			t.Errorf("%s: %v, want ErrPlan", name, err)
		}
	}
}

// What a client in handoff mode adds to a transfer is passed over, within its bounds.
func TestPlanWithHandoffPlaces(t *testing.T) {
	plan := func(blocks, shards int) []byte {
		p := Plan{Saves: []Transfer{{Blocks: make([]PlanBlock, blocks)}}}
		b := p.Append(nil)
		b = binary.AppendUvarint(b[:len(b)-1], uint64(shards))
		return append(b, make([]byte, shards*(2+HandoffBlockBytes*blocks))...)
	}
	if p, err := ParsePlan(plan(2, 3)); err != nil || len(p.Saves) != 1 || len(p.Saves[0].Blocks) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	for name, b := range map[string][]byte{
		"no blocks": plan(0, 2), "too many shards": plan(1, MaxShards+1), "cut": plan(2, 3)[:len(plan(2, 3))-1],
	} {
		if _, err := ParsePlan(b); !errors.Is(err, ErrPlan) {
			t.Errorf("%s: %v, want ErrPlan", name, err)
		}
	}
}

// A count of slots beyond the input must not be allocated.
func TestPlanOfLostSlotsBeyondItsEndIsRefused(t *testing.T) {
	b := append([]byte{planVersion}, make([]byte, 32)...)
	b = append(b, 1, 0)                         // one load, without an id
	b = append(b, 0xff, 0xff, 0xff, 0xff, 0x0f) // of 4 billion lost slots
	b = append(b, make([]byte, 64)...)
	if _, err := ParsePlan(b); !errors.Is(err, ErrPlan) {
		t.Errorf("%v, want ErrPlan", err)
	}
}

// The sizes that bound a plan are never less than what it takes.
func TestPlanSizesBoundThePlan(t *testing.T) {
	rng := seed.Random(t, 0)
	for range 200 {
		var l RequestLoad
		l.Request = strings.Repeat("r", rng.IntN(MaxIDBytes))
		l.Lost = make([]uint32, rng.IntN(300))
		size := 1 + 32 + 5 + 5 + MaxLoadBytes + len(l.Request) + 4*len(l.Lost)
		for range rng.IntN(4) {
			t := Transfer{Blocks: make([]PlanBlock, rng.IntN(300))}
			size += MaxTransferBytes + PlanBlockBytes*len(t.Blocks)
			l.Transfers = append(l.Transfers, t)
		}
		p := Plan{Loads: []RequestLoad{l}}
		if n := len(p.Append(nil)); n > size {
			t.Fatalf("a plan takes %d bytes, its bound is %d", n, size)
		}
	}
}

func FuzzParsePlan(f *testing.F) {
	f.Add(testPlan().Append(nil))
	f.Add([]byte{planVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParsePlan(b)
		if err != nil {
			return
		}
		again, err := ParsePlan(p.Append(nil))
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Errorf("plan changes when encoded again: %v", err)
		}
	})
}

func FuzzParseManifest(f *testing.F) {
	m := testManifest()
	f.Add(m.Canonical())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			return
		}
		again, err := ParseManifest(m.Canonical())
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("manifest changes in its canonical form: %v", err)
		}
	})
}

func testManifest() Manifest {
	return Manifest{
		Engine: "test/1", Model: "m", KVDType: "float32", BlockSize: 16, Groups: []Group{{Layers: 2, KVHeads: 1, HeadSize: 8, Layout: "LBHNC"}},
		TensorParallel: 1, PipelineParallel: 1, KeyScheme: KeySchemeTokens, HashScheme: HashScheme,
	}
}

func TestManifestDigestChangesWithEveryField(t *testing.T) {
	base := testManifest()
	want := base.Digest()
	v := reflect.ValueOf(&base).Elem()
	for i := range v.NumField() {
		m := testManifest()
		switch f := reflect.ValueOf(&m).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("other")
		case reflect.Int:
			f.SetInt(99)
		case reflect.Slice:
			f.Set(reflect.ValueOf([]Group{{Layers: 3}}))
		default:
			f.Set(reflect.ValueOf(map[string]string{"a": "b"}))
		}
		if m.Digest() == want {
			t.Errorf("digest is the same with another %s", v.Type().Field(i).Name)
		}
	}
}

func TestManifestNamesWhatDiffers(t *testing.T) {
	m := testManifest()
	m.Extra = map[string]string{"config": "a", "isa": "amx"}
	other := m
	if got := m.Differences(&other); got != nil {
		t.Errorf("equal manifests differ in %q", got)
	}
	other.Extra = map[string]string{"config": "b", "draft": "", "isa": "amx"}
	other.Revision, other.Groups = "another", nil
	want := []string{"extra.config", "extra.draft", "groups", "revision"}
	if got := m.Differences(&other); !slices.Equal(got, want) {
		t.Errorf("differences %q, want %q", got, want)
	}
	if got := other.Differences(&m); !slices.Equal(got, want) {
		t.Errorf("the other way round %q, want %q", got, want)
	}
}

func TestManifestDigestChangesWithEveryFieldOfAGroup(t *testing.T) {
	base := testManifest()
	want := base.Digest()
	v := reflect.TypeFor[Group]()
	for i := range v.NumField() {
		m := testManifest()
		switch f := reflect.ValueOf(&m.Groups[0]).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("other")
		case reflect.Int:
			f.SetInt(99)
		case reflect.Bool:
			f.SetBool(true)
		default:
			f.Set(reflect.ValueOf([]int{0}))
		}
		if m.Digest() == want {
			t.Errorf("digest is the same with another %s of a group", v.Field(i).Name)
		}
	}
}

func TestManifestRefusesUnknownFieldsAndBadValues(t *testing.T) {
	good := testManifest()
	b := good.Canonical()
	if _, err := ParseManifest(b); err != nil {
		t.Fatal(err)
	}
	good.Model = strings.Repeat("m", MaxManifestBytes)
	large := good.Canonical()
	// What is kept, sent and read again is the canonical form, in which < takes six bytes.
	escaped := strings.Replace(string(b), `"model":"`, `"model":"`+strings.Repeat("<", MaxManifestBytes/2), 1)
	for _, b := range []string{string(large), escaped} {
		if _, err := ParseManifest([]byte(b)); err == nil || !strings.Contains(err.Error(), "at most") {
			t.Errorf("a manifest of %d bytes: %v", len(b), err)
		}
	}
	for _, with := range []string{`{"surprise":1,"engine"`, `{"groups":[{"layers":1,"surprise":1}],"engine"`} {
		if _, err := ParseManifest([]byte(strings.Replace(string(b), `{"engine"`, with, 1))); err == nil || !strings.Contains(err.Error(), "surprise") {
			t.Errorf("a manifest with an unknown field: %v", err)
		}
	}
	for _, change := range []func(*Manifest){
		func(m *Manifest) { m.Engine = "" }, func(m *Manifest) { m.Model = "" }, func(m *Manifest) { m.KVDType = "" },
		func(m *Manifest) { m.BlockSize = 0 }, func(m *Manifest) { m.BlockSize = MaxBlockSize + 1 },
		func(m *Manifest) { m.Groups = nil }, func(m *Manifest) { m.Groups[0].Layers = 0 },
		func(m *Manifest) { m.Groups[0].Window = -1 }, func(m *Manifest) { m.Groups[0].Stages = []int{1} },
		func(m *Manifest) { m.Groups = make([]Group, MaxGroups+1) }, func(m *Manifest) { m.TensorParallel = 0 },
		func(m *Manifest) { m.TensorParallel, m.PipelineParallel = 1<<32, 1<<32 },
		func(m *Manifest) { m.KeyScheme = "other" }, func(m *Manifest) { m.HashScheme = "other" },
	} {
		m := testManifest()
		change(&m)
		if m.Validate() == nil {
			t.Errorf("accepted %+v", m)
		}
	}
}
