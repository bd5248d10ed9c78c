package event

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func memory(offGPU bool) string {
	if offGPU {
		return "elsewhere"
	}
	return "gpu"
}

// recorder notes events as text.
type recorder struct{ lines []string }

func (r *recorder) Stored(e *Stored) {
	var b strings.Builder
	fmt.Fprintf(&b, "stored %d ", e.Hashes)
	if e.HasParent {
		fmt.Fprintf(&b, "parent %d", e.Parent)
	} else {
		b.WriteString("root")
	}
	tokens := make([]uint32, len(e.Tokens)/4)
	for i := range tokens {
		tokens[i] = binary.LittleEndian.Uint32(e.Tokens[4*i:])
	}
	fmt.Fprintf(&b, " tokens %d size %d %s", tokens, e.BlockSize, memory(e.OffGPU))
	if len(e.LoRAName) > 0 {
		fmt.Fprintf(&b, " lora %q", e.LoRAName)
	}
	if e.HasLoRAID {
		fmt.Fprintf(&b, " lora id %d", e.LoRAID)
	}
	if len(e.Salt) > 0 {
		fmt.Fprintf(&b, " salt %q", e.Salt)
	}
	if len(e.Extra) > 0 {
		var parts []string
		for _, x := range e.Extra {
			if x == nil {
				parts = append(parts, "-")
			} else {
				parts = append(parts, hex.EncodeToString(x))
			}
		}
		fmt.Fprintf(&b, " extra %v", parts)
	}
	if e.Group != NoGroup {
		fmt.Fprintf(&b, " group %d", e.Group)
	}
	b.WriteString([...]string{"", " full", " other"}[e.Spec])
	r.lines = append(r.lines, b.String())
}

func (r *recorder) Removed(e *Removed) {
	r.lines = append(r.lines, fmt.Sprintf("removed %d %v group %d", e.Hashes, memory(e.OffGPU), e.Group))
}

func (r *recorder) Cleared() { r.lines = append(r.lines, "cleared") }

type goldenCase struct {
	Name string
	Hex  string
	Want []string
}

// golden are the batches of testdata/golden.json, which testdata/golden.py encodes with msgspec, the
// encoder of vLLM and SGLang.
func golden(t testing.TB) (cases []goldenCase) {
	t.Helper()
	b, err := os.ReadFile("testdata/golden.json")
	if err == nil {
		err = json.Unmarshal(b, &cases)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEveryDialectIsDecoded(t *testing.T) {
	for _, c := range golden(t) {
		t.Run(c.Name, func(t *testing.T) {
			var got recorder
			d := NewDecoder()
			batch, err := d.Decode(unhex(t, c.Hex), &got)
			if err != nil {
				t.Fatal(err)
			}
			if batch.HasRank {
				got.lines = append(got.lines, fmt.Sprintf("rank %d", batch.Rank))
			}
			if d.UnknownTypes+d.UnknownKeys > 0 {
				got.lines = append(got.lines, fmt.Sprintf("unknown types %d keys %d", d.UnknownTypes, d.UnknownKeys))
			}
			if !slices.Equal(got.lines, c.Want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got.lines, "\n"), strings.Join(c.Want, "\n"))
			}
		})
	}
}

// The two payloads that vLLM's documentation of the format was checked with, byte for byte.
func TestPublishedPayloadsAreTheGoldenOnes(t *testing.T) {
	cases := golden(t)
	for i, want := range []string{
		"93cb41da3054981000009184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf2ceabcfae6d332eaa66d656469756da3475055a967726f75705f6964780000",
		"93cb41da3054981000009181a474797065b0416c6c426c6f636b73436c656172656400",
	} {
		if cases[i].Hex != want {
			t.Errorf("%s: %s, published %s", cases[i].Name, cases[i].Hex, want)
		}
	}
}

func TestEveryTruncationIsRefused(t *testing.T) {
	for _, c := range golden(t) {
		b := unhex(t, c.Hex)
		for n := range b {
			if _, err := NewDecoder().Decode(b[:n], new(recorder)); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s cut to %d of %d bytes: %v", c.Name, n, len(b), err)
			}
		}
		if _, err := NewDecoder().Decode(append(b, 0xc0), new(recorder)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s with one byte more: %v", c.Name, err)
		}
	}
}

func TestHostileBatchesAreRefused(t *testing.T) {
	deep := append([]byte{0x92, 0x01, 0x91, 0x81, 0xa1, 'x'}, bytes.Repeat([]byte{0x91}, 1<<20)...)
	for name, b := range map[string][]byte{
		"nothing":                     nil,
		"not an array":                {0xc0},
		"an envelope of one":          {0x91, 0x01},
		"four billion events":         {0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"four billion keys":           {0x92, 0x01, 0x91, 0xdf, 0xff, 0xff, 0xff, 0xff},
		"a name of 4 GiB":             {0x92, 0x01, 0x91, 0x81, 0xdb, 0xff, 0xff, 0xff, 0xff},
		"an extension of 4 GiB":       {0x92, 0x01, 0x91, 0x81, 0xa1, 'x', 0xc9, 0xff, 0xff, 0xff, 0xff, 0x00},
		"a million levels":            deep,
		"an event that is a number":   {0x92, 0x01, 0x91, 0x05},
		"an event without a type":     {0x92, 0x01, 0x91, 0x90},
		"a byte that msgpack has not": {0x92, 0x01, 0x91, 0x81, 0xa1, 'x', 0xc1},
		"a negative token":            unhex(t, "9201919"+"4ab426c6f636b53746f726564"+"9101c091ff"),
		"a hash of 7 bytes":           unhex(t, "9201919"+"2ac426c6f636b52656d6f766564"+"91c40700000000000000"),
		"a hash of 65 bytes":          unhex(t, "9201919"+"2ac426c6f636b52656d6f766564"+"91c441"+strings.Repeat("00", 65)),
		"a time that is a string":     {0x92, 0xa1, 'x', 0x90},
		"half of a time":              {0x92, 0xcb, 0x41, 0xda},
		"a negative rank":             {0x93, 0x01, 0x90, 0xff},
	} {
		if _, err := NewDecoder().Decode(b, new(recorder)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLimitsHold(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit func(*Decoder) *int
		hex   string
	}{
		{"events", func(d *Decoder) *int { return &d.maxEvents }, "92019291a14191a142"},
		{"blocks", func(d *Decoder) *int { return &d.maxBlocks }, "92019192ac426c6f636b52656d6f766564920102"},
		{"tokens", func(d *Decoder) *int { return &d.maxTokens }, "92019194ab426c6f636b53746f7265649101c0920102"},
	} {
		d := NewDecoder()
		*c.limit(d) = 1
		if _, err := d.Decode(unhex(t, c.hex), new(recorder)); !errors.Is(err, ErrMalformed) {
			t.Errorf("one of %s allowed, two sent: %v", c.name, err)
		}
		if _, err := NewDecoder().Decode(unhex(t, c.hex), new(recorder)); err != nil {
			t.Errorf("two %s: %v", c.name, err)
		}
	}
}

// Token ids of every width, in every order, at every distance from the message's end.
func TestTokensOfEveryWidthAreRead(t *testing.T) {
	edges := []uint32{0, 1, 127, 128, 255, 256, 65535, 65536, 1<<31 - 1, 1 << 31, 1<<32 - 1}
	x := uint32(7)
	for n := range 200 {
		want := make([]uint32, n)
		b := binary.BigEndian.AppendUint16([]byte{0x92, 1, 0x91, 0x94, 0xab, 'B', 'l', 'o', 'c', 'k', 'S', 't', 'o', 'r', 'e', 'd', 0x90, 0xc0, 0xdc}, uint16(n))
		for i := range want {
			x = x*1664525 + 1013904223
			want[i] = edges[x>>16%uint32(len(edges))]
			switch x >> 8 & 3 { // the shortest form is usual, the others are allowed
			case 0:
				b = binary.BigEndian.AppendUint64(append(b, 0xcf), uint64(want[i]))
			case 1:
				b = binary.BigEndian.AppendUint32(append(b, 0xce), want[i])
			default:
				b = appendToken(b, want[i])
			}
		}
		var got []uint32
		h := tokenHandler(func(e *Stored) {
			for i := 0; i < len(e.Tokens); i += 4 {
				got = append(got, binary.LittleEndian.Uint32(e.Tokens[i:]))
			}
		})
		if _, err := NewDecoder().Decode(b, h); err != nil || !slices.Equal(got, want) {
			t.Fatalf("%d tokens: %v\ngot  %v\nwant %v", n, err, got, want)
		}
	}
}

// tokenHandler looks at stored events only.
type tokenHandler func(*Stored)

func (f tokenHandler) Stored(e *Stored) { f(e) }
func (tokenHandler) Removed(*Removed)   {}
func (tokenHandler) Cleared()           {}

// discard counts blocks.
type discard struct{ blocks int }

func (h *discard) Stored(e *Stored)   { h.blocks += len(e.Hashes) }
func (h *discard) Removed(e *Removed) { h.blocks += len(e.Hashes) }
func (h *discard) Cleared()           {}

func TestDecodingDoesNotAllocate(t *testing.T) {
	for _, c := range golden(t) {
		b, d, h := unhex(t, c.Hex), NewDecoder(), new(discard)
		if n := testing.AllocsPerRun(100, func() {
			if _, err := d.Decode(b, h); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", c.Name, n)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range golden(f) {
		f.Add(unhex(f, c.Hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var first, second recorder
		d := NewDecoder()
		d.maxEvents, d.maxBlocks, d.maxTokens = 64, 256, 4096
		_, err := d.Decode(b, &first)
		if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("an error of another kind: %v", err)
		}
		if _, again := d.Decode(b, &second); (again == nil) != (err == nil) || !slices.Equal(first.lines, second.lines) {
			t.Fatalf("decoded twice: %v, then %v", err, again)
		}
	})
}
