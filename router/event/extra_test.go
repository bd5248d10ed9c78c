package event

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// storedWith is a batch of one BlockStored event of blocks of two tokens, with these fields on top.
func storedWith(t *testing.T, blocks int, fields ...any) []byte {
	t.Helper()
	hashes, tokens := make([]any, blocks), make([]any, 2*blocks)
	for i := range hashes {
		hashes[i] = uint64(i + 1)
	}
	for i := range tokens {
		tokens[i] = uint64(i)
	}
	fields = append([]any{"type", "BlockStored", "block_hashes", hashes, "token_ids", tokens, "block_size", 2}, fields...)
	b := msgp.AppendArrayHeader(msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), 1), 1)
	b = msgp.AppendMapHeader(b, uint32(len(fields)/2))
	for _, f := range fields {
		var err error
		if b, err = msgp.AppendIntf(b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func list(v ...any) []any { return v }

// What tells equal tokens apart must never get lost, whatever its text is: tenants would seem to share.
func TestWhatSeparatesEqualTokensIsNeverLost(t *testing.T) {
	for _, c := range []struct {
		name   string
		fields []any
		blocks int
		salt   string
		extra  []bool // which blocks have some
	}{
		{"a salt that is the adapter's name", list("lora_name", "a", "extra_keys", list(list("a", "a"))), 1, "a", nil},
		{"an adapter alone", list("lora_name", "a", "extra_keys", list(list("a"), list("a"))), 2, "", nil},
		{"adapter and salt", list("lora_name", "a", "extra_keys", list(list("a", "s"), list("a"))), 2, "s", nil},
		{"an image named like the adapter", list("lora_name", "a", "extra_keys", list(list("a"), list("a", "a"))), 2, "", []bool{false, true}},
		{"an image named like the salt", list("extra_keys", list(list("s"), list("s"))), 2, "s", []bool{false, true}},
		{"the salt in both places", list("cache_salt", "s", "extra_keys", list(list("s"), nil)), 2, "s", nil},
		{"an image named like the salt in its own field", list("cache_salt", "s", "extra_keys", list(nil, list("s"))), 2, "s", []bool{false, true}},
		{"a second list with nothing in it", list("extra_keys", list(nil, list("i")), "mm_keys", list(nil, nil)), 2, "", []bool{true, true}},
		{"a second list that is nil", list("extra_keys", list(nil, list("i")), "mm_keys", nil), 2, "", []bool{false, true}},
		{"an empty list and another", list("extra_keys", list(nil, nil), "mm_keys", list(nil, list("i"))), 2, "", []bool{false, true}},
		{"two lists", list("extra_keys", list(list("i"), nil), "mm_keys", list(list("j"), nil)), 2, "", []bool{true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got scopes
			if _, err := NewDecoder().Decode(storedWith(t, c.blocks, c.fields...), &got); err != nil {
				t.Fatal(err)
			}
			if got.salt != c.salt || !slices.Equal(got.extra, c.extra) {
				t.Errorf("salt %q, extra keys of blocks %v; want %q, %v", got.salt, got.extra, c.salt, c.extra)
			}
		})
	}
}

// scopes notes what separates the blocks of an event.
type scopes struct {
	salt  string
	extra []bool
}

func (s *scopes) Stored(e *Stored) {
	s.salt = string(e.Salt)
	for _, x := range e.Extra {
		s.extra = append(s.extra, x != nil)
	}
}
func (*scopes) Removed(*Removed) {}
func (*scopes) Cleared()         {}

// An adapter's identity is kept whatever form it has: a batch must not be lost for it.
func TestAnAdapterIsANumberOrAName(t *testing.T) {
	for _, c := range []struct {
		fields []any
		name   string
		id     int64
	}{
		{list("lora_id", "a"), "a", 0},
		{list("lora_id", "uuid", "lora_name", "a"), "a", 0},
		{list("lora_name", "a", "lora_id", "uuid"), "a", 0},
		{list("lora_id", "a", "lora_name", nil), "a", 0},
		{list("lora_id", uint64(1<<63)), "", -1 << 63},
		{list("lora_id", int64(-5), "lora_name", "a"), "a", -5},
		{list("lora_id", nil), "", 0},
	} {
		var got adapters
		if _, err := NewDecoder().Decode(storedWith(t, 1, c.fields...), &got); err != nil {
			t.Errorf("%v: %v", c.fields, err)
		} else if got.name != c.name || got.id != c.id || got.has != (c.id != 0) {
			t.Errorf("%v: %+v", c.fields, got)
		}
	}
}

type adapters struct {
	name string
	id   int64
	has  bool
}

func (a *adapters) Stored(e *Stored) { a.name, a.id, a.has = string(e.LoRAName), e.LoRAID, e.HasLoRAID }
func (*adapters) Removed(*Removed)   {}
func (*adapters) Cleared()           {}

// A message of megabytes must not become terabytes to hash.
func TestExtraKeysThatAreNotByBlockStayShort(t *testing.T) {
	image := func(n int) []any { return list(list(strings.Repeat("i", n), 1)) } // one list for three blocks
	seen := map[string]bool{}
	for _, n := range []int{1, 60, 1 << 20, 1<<20 + 1} {
		h := tokenHandler(func(e *Stored) {
			if len(e.Extra) != 3 {
				t.Fatalf("%d extra keys for 3 blocks", len(e.Extra))
			}
			for _, x := range e.Extra {
				if len(x) == 0 || len(x) > maxExtraEach || !bytes.Equal(x, e.Extra[0]) {
					t.Errorf("%d bytes of %d", len(x), n)
				}
			}
			if seen[string(e.Extra[0])] {
				t.Errorf("the same as another: %x", e.Extra[0])
			}
			seen[string(e.Extra[0])] = true
		})
		if _, err := NewDecoder().Decode(storedWith(t, 3, "extra_keys", image(n)), h); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 4 {
		t.Errorf("%d kinds", len(seen))
	}
}

// SGLang has numbers of more than 32 bits where a prompt has an image: no tokens, and no reason to lose the
// batch.
func TestWhatIsNoTokenTellsBlocksApart(t *testing.T) {
	const wide = uint64(1 << 40)
	decode := func(fields ...any) (extra [][]byte, tokens int) {
		t.Helper()
		h := tokenHandler(func(e *Stored) {
			for _, x := range e.Extra {
				extra = append(extra, slices.Clone(x))
			}
			tokens = len(e.Tokens) / 4
		})
		if _, err := NewDecoder().Decode(storedWith(t, 3, fields...), h); err != nil {
			t.Fatal(err)
		}
		return extra, tokens
	}
	has := func(extra [][]byte) (list []bool) {
		for _, x := range extra {
			list = append(list, x != nil)
		}
		return list
	}
	for name, c := range map[string]struct {
		fields []any
		extra  []bool
	}{
		"none":             {list("token_ids", list(0, 1, 2, 1<<32-1, 4, 5)), nil},
		"an image":         {list("token_ids", list(0, 1, wide, wide, 4, 5)), []bool{false, true, false}},
		"half a block":     {list("token_ids", list(0, 1, 2, 3, 4, wide)), []bool{false, false, true}},
		"with extra keys":  {list("token_ids", list(0, wide, 2, 3, 4, 5), "extra_keys", list(list("i", 1), nil, list("j", 2))), []bool{true, false, true}},
		"neighbours":       {list("token_ids", list(list(0, 1), list(1, wide), list(wide, 3), list(3, 4), list(4, 5), list(5, 6))), []bool{false, true, false}},
		"not by the block": {list("token_ids", list(0, wide, 2, 3)), nil},
	} {
		if extra, _ := decode(c.fields...); !slices.Equal(has(extra), c.extra) {
			t.Errorf("%s: %v, want %v", name, has(extra), c.extra)
		}
	}
	one, n := decode("token_ids", list(0, 1, wide, wide, 4, 5))
	two, _ := decode("token_ids", list(0, 1, wide+1<<33, wide, 4, 5))
	both, _ := decode("token_ids", list(0, 1, wide, wide, 4, 5), "extra_keys", list(nil, list("i", 1), nil))
	if n != 6 || slices.Equal(one[1], two[1]) || slices.Equal(one[1], both[1]) {
		t.Errorf("%d tokens, %x, %x and %x", n, one, two, both)
	}
}
