package event

import (
	"slices"
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
			if _, err := NewDecoder(Limits{}).Decode(storedWith(t, c.blocks, c.fields...), &got); err != nil {
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
		if _, err := NewDecoder(Limits{}).Decode(storedWith(t, 1, c.fields...), &got); err != nil {
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
