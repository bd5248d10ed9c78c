package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/internal/testkit/property"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
)

func newCodec(t testing.TB, workers int) *Codec {
	t.Helper()
	c, err := New(workers)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// values are keys and values as models make them: noise around zero, in elements of width bytes.
func values(random *rand.Rand, payloadBytes, width int) []byte {
	b := make([]byte, 0, payloadBytes+4)
	for len(b) < payloadBytes {
		v := math.Float32bits(float32(random.NormFloat64()))
		switch width {
		case 4:
			b = binary.LittleEndian.AppendUint32(b, v)
		case 2: // bfloat16
			b = binary.LittleEndian.AppendUint16(b, uint16(v>>16))
		default:
			b = append(b, byte(int(random.NormFloat64()*20)))
		}
	}
	return b[:payloadBytes]
}

func TestPayloadsRoundTrip(t *testing.T) {
	c := newCodec(t, 2)
	property.Check(t, func(t *rapid.T) {
		width := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "width")
		count := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, 50_000)).Draw(t, "elements")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		payload := values(random, count*width, width)
		if rapid.Bool().Draw(t, "zeros") {
			clear(payload[rapid.IntRange(0, len(payload)-1).Draw(t, "from"):])
		}
		before := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "before")
		want, prefix := bytes.Clone(payload), bytes.Clone(before)
		encoded, smaller := c.Encode(before, payload, width)
		if !bytes.Equal(payload, want) || !bytes.Equal(encoded[:len(prefix)], prefix) {
			t.Fatal("the payload was changed, or what was before")
		}
		if !smaller {
			if len(encoded) != len(prefix) {
				t.Fatalf("%d bytes more, and not smaller", len(encoded)-len(prefix))
			}
			return
		}
		encoded = encoded[len(prefix):]
		if len(encoded) >= len(payload) {
			t.Fatalf("%d bytes became %d", len(payload), len(encoded))
		}
		got := make([]byte, len(payload))
		if err := c.Decode(got, encoded); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d elements of %d bytes: %v", count, width, err)
		}
	})
}

// Splitting has a fast path: it must do what the description says.
func TestPlanes(t *testing.T) {
	random := seed.Random(t, 0)
	for count := range 70 {
		for _, width := range []int{2, 4} {
			elements := make([]byte, count*width)
			for i := range elements {
				elements[i] = byte(random.Uint32())
			}
			var raw [maxWidth - 1][]byte
			for i := range width - 1 {
				raw[i] = make([]byte, count)
			}
			top := make([]byte, count)
			split(raw, top, elements)
			for i := range count {
				var v uint64
				for j := range width {
					v |= uint64(elements[i*width+j]) << (8 * j)
				}
				v = v<<1&(1<<(8*width)-1) | v>>(8*width-1)
				for j := range width {
					plane := top
					if j < width-1 {
						plane = raw[j]
					}
					if plane[i] != byte(v>>(8*j)) {
						t.Fatalf("%d elements of %d bytes: byte %d of element %d is %#x, want %#x", count, width, j, i, plane[i], byte(v>>(8*j)))
					}
				}
			}
			got := make([]byte, len(elements))
			if merge(got, raw, top, width); !bytes.Equal(got, elements) {
				t.Fatalf("%d elements of %d bytes do not come back", count, width)
			}
		}
	}
}

// goldenElement is what testdata/golden.py makes payloads of.
func goldenElement(i, width int) uint32 {
	exponent, mantissa := 120+uint32(i*7919%5), uint32(uint64(i)*2654435761%(1<<23))
	return (uint32(i&1)<<31 | exponent<<23 | mantissa) >> (8 * (4 - width))
}

// What another program encoded by the description is decoded.
func TestGoldenPayloads(t *testing.T) {
	c := newCodec(t, 1)
	for _, width := range []int{1, 2, 4} {
		var want []byte
		for i := range 5000 {
			var e [4]byte
			binary.LittleEndian.PutUint32(e[:], goldenElement(i, width))
			want = append(want, e[:width]...)
		}
		encoded, err := os.ReadFile(fmt.Sprintf("testdata/width%d.bin", width))
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if err := c.Decode(got, encoded); err != nil || !bytes.Equal(got, want) {
			t.Errorf("elements of %d bytes: %v", width, err)
		}
		// And Encode puts the planes in the same places.
		again, smaller := c.Encode(nil, want, width)
		if raw := (width - 1) * (lengthBytes + 5000); !smaller || !bytes.Equal(again[:raw], encoded[:raw]) {
			t.Errorf("elements of %d bytes: other planes", width)
		}
	}
}

// What the design counts on: bfloat16 shrinks to less than three quarters.
func TestValuesShrink(t *testing.T) {
	c, random := newCodec(t, 1), seed.Random(t, 0)
	for width, most := range map[int]float64{2: 0.75, 4: 0.875} {
		payload := values(random, 1<<20, width)
		encoded, smaller := c.Encode(nil, payload, width)
		if left := float64(len(encoded)) / float64(len(payload)); !smaller || left > most {
			t.Errorf("elements of %d bytes: %.3f is left, want at most %.3f", width, left, most)
		}
	}
}

func TestWhatIsNotEncoded(t *testing.T) {
	c, random := newCodec(t, 1), seed.Random(t, 0)
	noise := make([]byte, 1<<16)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	for name, p := range map[string]struct {
		payload []byte
		width   int
	}{
		"noise":             {noise, 2},
		"noise of 1 byte":   {noise, 1},
		"noise of 4 bytes":  {noise, 4},
		"nothing":           {nil, 2},
		"half an element":   {make([]byte, 1001), 2},
		"width 0":           {make([]byte, 1000), 0},
		"width 3":           {make([]byte, 999), 3},
		"width 8":           {make([]byte, 1000), 8},
		"width -1":          {make([]byte, 1000), -1},
		"a single element":  {make([]byte, 2), 2},
		"too few to shrink": {make([]byte, 8), 4},
	} {
		dst := []byte("before")
		if got, smaller := c.Encode(dst, p.payload, p.width); smaller || string(got) != "before" {
			t.Errorf("%s: %d bytes, %v", name, len(got), smaller)
		}
	}
}

// badPayloads are encoded payloads of 8192 bytes that are none.
func badPayloads(t *testing.T, c *Codec) map[string][]byte {
	t.Helper()
	const payloadBytes, count = 8192, 4096
	good, smaller := c.Encode(nil, values(seed.Random(t, 0), payloadBytes, 2), 2)
	if !smaller {
		t.Fatal("not smaller")
	}
	frames := func(content []byte, options ...zstd.EOption) []byte {
		e, err := zstd.NewWriter(nil, options...)
		if err != nil {
			t.Fatal(err)
		}
		return e.EncodeAll(content, nil)
	}
	around := func(frame []byte) []byte {
		b := bytes.Clone(good[:lengthBytes+count])
		b = binary.LittleEndian.AppendUint32(b, uint32(len(frame)))
		return append(b, frame...)
	}
	with := func(change func(b []byte)) []byte {
		b := bytes.Clone(good)
		change(b)
		return b
	}
	plane := make([]byte, count)
	// A frame that says 64 GiB: its descriptor has a content size of 8 bytes.
	huge := append([]byte("\x28\xb5\x2f\xfd\xe0"), 0, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0)
	// Blocks of zeros without end, in a frame that says the right size.
	endless := append([]byte("\x28\xb5\x2f\xfd\x60"), byte((count-256)&255), byte((count-256)>>8))
	for range 100 {
		endless = append(endless, 2, 0x80, 0, 0) // RLE, 4096 times 0, not the last
	}
	skippable := append([]byte("\x50\x2a\x4d\x18\xff\xff\xff\x7f"), plane[:100]...)
	return map[string][]byte{
		"nothing":                 {},
		"a length alone":          {0, 0, 0, 0},
		"noise":                   bytes.Repeat([]byte{0xa5}, 4500),
		"longer than the payload": make([]byte, payloadBytes),
		"first plane shorter":     with(func(b []byte) { b[0]-- }),
		"first plane of 4 GiB":    with(func(b []byte) { copy(b, "\xff\xff\xff\xff") }),
		"frame longer":            with(func(b []byte) { b[lengthBytes+count]++ }),
		"frame of 4 GiB":          with(func(b []byte) { copy(b[lengthBytes+count:], "\xff\xff\xff\xff") }),
		"cut":                     good[:len(good)-1],
		"a byte more":             append(bytes.Clone(good), 0),
		"no frame":                around(nil),
		"frame of less":           around(frames(plane[:count-1])),
		"frame of more":           around(frames(append(plane, 0))),
		"frame of much more":      around(frames(make([]byte, 1<<20))),
		"frame of 64 GiB":         around(huge),
		"endless blocks":          around(endless),
		"skippable frame":         around(skippable),
		"two frames":              around(append(frames(plane), frames(plane)...)),
		"frame and noise":         around(append(frames(plane), "noise"...)),
	}
}

func TestHostilePayloads(t *testing.T) {
	c := newCodec(t, 1)
	for name, b := range badPayloads(t, c) {
		payload := make([]byte, 8192)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := c.Decode(payload, b)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrBad) {
			t.Errorf("%s: %v", name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
			t.Errorf("%s: %d bytes were allocated", name, took)
		}
	}
	good, _ := c.Encode(nil, values(seed.Random(t, 0), 8192, 2), 2)
	for _, other := range []int{0, 1, 8190, 8191, 8193, 8194, 16384, store.MaxPayloadBytes} {
		if err := c.Decode(make([]byte, other), good); !errors.Is(err, ErrBad) {
			t.Errorf("decoded into %d bytes: %v", other, err)
		}
	}
	if err := c.Decode(make([]byte, 8192), good); err != nil {
		t.Errorf("after all this: %v", err)
	}
}

// A changed bit gives an error or another payload, and nothing worse: the record's checksum finds it.
func TestFlippedBits(t *testing.T) {
	c, random := newCodec(t, 1), seed.Random(t, 0)
	for _, width := range []int{1, 2, 4} {
		good, smaller := c.Encode(nil, make([]byte, 4096*width), width)
		if width > 1 {
			good, smaller = c.Encode(nil, values(random, 2048*width, width), width)
		}
		if !smaller {
			t.Fatal("not smaller")
		}
		payload := make([]byte, 4096*width)
		if width > 1 {
			payload = payload[:2048*width]
		}
		for bit := 0; bit < 8*len(good); bit += 1 + random.IntN(8) {
			good[bit/8] ^= 1 << (bit % 8)
			if err := c.Decode(payload, good); err != nil && !errors.Is(err, ErrBad) {
				t.Fatalf("bit %d: %v", bit, err)
			}
			good[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestManyAtOneTime(t *testing.T) {
	c := newCodec(t, 2)
	var wg sync.WaitGroup
	for i := range 8 {
		random := seed.Random(t, i)
		wg.Go(func() {
			for range 10 {
				width := []int{1, 2, 4}[random.IntN(3)]
				payload := values(random, (1+random.IntN(20_000))*4, width)
				encoded, smaller := c.Encode(nil, payload, width)
				got := make([]byte, len(payload))
				if !smaller {
					continue
				}
				if err := c.Decode(got, encoded); err != nil || !bytes.Equal(got, payload) {
					t.Errorf("%d bytes: %v", len(payload), err)
				}
			}
		})
	}
	wg.Wait()
}

func TestWidths(t *testing.T) {
	for dtype, want := range map[string]int{
		"bfloat16": 2, "torch.bfloat16": 2, "BF16": 2, "float16": 2, "HALF": 2, "float32": 4, "FP32": 4, "float8_e4m3fn": 1, "fp8": 1,
		"fp8_e5m2": 1, "uint8": 1, "float64": 0, "int32": 0, "nvfp4": 0, "": 0,
	} {
		if got := Width(dtype); got != want {
			t.Errorf("%q: %d, want %d", dtype, got, want)
		}
	}
	if _, err := New(-1); err == nil {
		t.Error("a codec of -1 workers was made")
	}
}

func FuzzDecode(f *testing.F) {
	c := newCodec(f, 1)
	random := rand.New(rand.NewPCG(1, 0))
	for _, width := range []int{1, 2, 4} {
		payload := values(random, 1024*width, width)
		if width == 1 {
			clear(payload)
		}
		if encoded, smaller := c.Encode(nil, payload, width); smaller {
			f.Add(encoded, uint32(len(payload)))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, payloadBytes uint32) {
		payload := make([]byte, payloadBytes%(1<<20))
		if err := c.Decode(payload, b); err != nil {
			if !errors.Is(err, ErrBad) {
				t.Fatal(err)
			}
			return
		}
		for _, width := range []int{1, 2, 4} {
			encoded, smaller := c.Encode(nil, payload, width)
			got := make([]byte, len(payload))
			if !smaller {
				continue
			}
			if err := c.Decode(got, encoded); err != nil || !bytes.Equal(got, payload) {
				t.Fatalf("elements of %d bytes: %v", width, err)
			}
		}
	})
}

func FuzzEncode(f *testing.F) {
	c := newCodec(f, 1)
	f.Add([]byte("some payload some payload some payload some payload"), uint8(0))
	f.Add(make([]byte, 1000), uint8(2))
	f.Fuzz(func(t *testing.T, payload []byte, w uint8) {
		width := 1 << (w % 3)
		encoded, smaller := c.Encode(nil, payload, width)
		if !smaller {
			return
		}
		got := make([]byte, len(payload))
		if err := c.Decode(got, encoded); err != nil || !bytes.Equal(got, payload) {
			t.Fatalf("%d bytes of elements of %d: %v", len(payload), width, err)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	for _, width := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("width%d", width), func(b *testing.B) {
			c, payload := newCodec(b, 1), values(rand.New(rand.NewPCG(1, 0)), 2<<20, width)
			dst := make([]byte, 0, 3<<20)
			b.SetBytes(int64(len(payload)))
			for b.Loop() {
				c.Encode(dst, payload, width)
			}
			encoded, _ := c.Encode(dst, payload, width)
			b.ReportMetric(float64(len(payload))/float64(max(len(encoded), 1)), "ratio")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, width := range []int{2, 4} {
		b.Run(fmt.Sprintf("width%d", width), func(b *testing.B) {
			c, payload := newCodec(b, 1), values(rand.New(rand.NewPCG(1, 0)), 2<<20, width)
			encoded, smaller := c.Encode(nil, payload, width)
			if !smaller {
				b.Fatal("not smaller")
			}
			b.SetBytes(int64(len(payload)))
			for b.Loop() {
				if err := c.Decode(payload, encoded); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
