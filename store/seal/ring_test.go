package seal

import (
	"bytes"
	"crypto/sha3"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// ringOf makes a ring of any keys, also of those that New refuses as the specification's are.
func ringOf(t testing.TB, secrets ...Key) *Ring {
	t.Helper()
	r := new(Ring)
	for i := range secrets {
		k, err := prepare(&secrets[i])
		if err != nil {
			t.Fatal(err)
		}
		r.keys = append(r.keys, k)
	}
	return r
}

// testKey is a key that New accepts.
func testKey(number byte) (k Key) {
	for i := range k {
		k[i] = number + byte(i*i)
	}
	return k
}

func filled(b byte) (k Key) {
	return Key(bytes.Repeat([]byte{b}, KeyBytes))
}

// The test vectors of https://c2sp.org/XAES-256-GCM.
func TestXAESVectors(t *testing.T) {
	n := [NonceBytes]byte([]byte("ABCDEFGHIJKLMNOPQRSTUVWX"))
	for _, v := range []struct {
		key                Key
		mask, aad, message string
	}{
		{filled(1), "e531954aca063d5b8d9c47a47d4cc6f0", "", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"},
		{filled(3), "23810ec50edb99f374409466ed1f4b7b", "c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"},
	} {
		r := ringOf(t, v.key)
		if got := hex.EncodeToString(r.keys[0].mask[:]); got != v.mask {
			t.Errorf("K1 is %s, want %s", got, v.mask)
		}
		sealed, tag, id := r.Seal(nil, []byte("XAES-256-GCM"), []byte(v.aad), &n)
		if got := hex.EncodeToString(append(bytes.Clone(sealed), tag[:]...)); got != v.message {
			t.Errorf("sealed: %s, want %s", got, v.message)
		}
		plain, err := r.Open(nil, sealed, []byte(v.aad), &n, &tag, id)
		if err != nil || string(plain) != "XAES-256-GCM" {
			t.Errorf("opened: %q, %v", plain, err)
		}
	}
}

// The accumulated test of the same page: 10,000 messages from one stream, hashed.
func TestXAESAccumulatedVectors(t *testing.T) {
	source, sum := sha3.NewSHAKE128(), sha3.NewSHAKE128()
	read := func(b []byte) []byte {
		if _, err := source.Read(b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	short := func() []byte { return read(make([]byte, read(make([]byte, 1))[0])) }
	for range 10_000 {
		secret, n := Key(read(make([]byte, KeyBytes))), [NonceBytes]byte(read(make([]byte, NonceBytes)))
		plain, aad := short(), short()
		r := ringOf(t, secret)
		sealed, tag, id := r.Seal(nil, plain, aad, &n)
		if got, err := r.Open(nil, sealed, aad, &n, &tag, id); err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("%d bytes with %d: %v", len(plain), len(aad), err)
		}
		_, _ = sum.Write(sealed)
		_, _ = sum.Write(tag[:])
	}
	got := make([]byte, 32)
	if _, err := sum.Read(got); err != nil {
		t.Fatal(err)
	}
	if want := "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939"; hex.EncodeToString(got) != want {
		t.Errorf("%x, want %s", got, want)
	}
}

func TestWhatWasChangedIsForged(t *testing.T) {
	r, n := ringOf(t, testKey(1)), NewNonce()
	plain, aad := []byte("keys and values of sixteen tokens"), []byte("whose they are")
	sealed, tag, id := r.Seal(nil, plain, aad, &n)
	for name, part := range map[string][]byte{"sealed": sealed, "aad": aad, "nonce": n[:], "tag": tag[:]} {
		for bit := range 8 * len(part) {
			part[bit/8] ^= 1 << (bit % 8)
			if got, err := r.Open(nil, sealed, aad, &n, &tag, id); !errors.Is(err, ErrForged) || got != nil {
				t.Fatalf("%s, bit %d: %q, %v", name, bit, got, err)
			}
			part[bit/8] ^= 1 << (bit % 8)
		}
	}
	for name, cut := range map[string]func() ([]byte, error){
		"shorter":     func() ([]byte, error) { return r.Open(nil, sealed[:len(sealed)-1], aad, &n, &tag, id) },
		"empty":       func() ([]byte, error) { return r.Open(nil, nil, aad, &n, &tag, id) },
		"without aad": func() ([]byte, error) { return r.Open(nil, sealed, nil, &n, &tag, id) },
	} {
		if got, err := cut(); !errors.Is(err, ErrForged) || got != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, err := r.Open(nil, sealed, aad, &n, &tag, id); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("unchanged: %q, %v", got, err)
	}
}

// Plain text that failed verification is nowhere to be read.
func TestForgedMessagesLeaveNothing(t *testing.T) {
	r, n := ringOf(t, testKey(1)), NewNonce()
	sealed, tag, id := r.Seal(nil, bytes.Repeat([]byte("secret"), 1000), nil, &n)
	tag[0] ^= 1
	dst := make([]byte, 0, len(sealed))
	if _, err := r.Open(dst, sealed, nil, &n, &tag, id); !errors.Is(err, ErrForged) {
		t.Fatal(err)
	}
	if dst = dst[:cap(dst)]; bytes.Contains(dst, []byte("secret")) {
		t.Error("the plain text is in the buffer")
	}
}

// A new key comes in as second, goes to the first place, and the old one goes out.
func TestRotation(t *testing.T) {
	before, after := testKey(1), testKey(2)
	rings := []*Ring{ringOf(t, before), ringOf(t, before, after), ringOf(t, after, before), ringOf(t, after)}
	opens := [][]bool{{true, true, true, false}, {true, true, true, false}, {false, true, true, true}, {false, true, true, true}}
	for i, writer := range rings {
		n := NewNonce()
		sealed, tag, id := writer.Seal(nil, []byte("text"), nil, &n)
		if id != writer.KeyID() || id != writer.KeyIDs()[0] {
			t.Errorf("ring %d sealed with key %s", i, KeyName(id))
		}
		for j, reader := range rings {
			got, err := reader.Open(nil, sealed, nil, &n, &tag, id)
			switch want := opens[i][j]; {
			case reader.Has(id) != want:
				t.Errorf("ring %d has the key of ring %d: %v", j, i, !want)
			case want && (err != nil || string(got) != "text"):
				t.Errorf("ring %d opens what ring %d sealed: %q, %v", j, i, got, err)
			case !want && (!errors.Is(err, ErrUnknownKey) || !strings.Contains(err.Error(), KeyName(id)) || got != nil):
				t.Errorf("ring %d opens what ring %d sealed: %q, %v", j, i, got, err)
			}
		}
	}
}

// A key that pretends to have another's id opens nothing of it.
func TestAnotherKeyUnderTheSameID(t *testing.T) {
	r, other, n := ringOf(t, testKey(1)), ringOf(t, testKey(2)), NewNonce()
	other.keys[0].id = r.keys[0].id
	sealed, tag, id := r.Seal(nil, []byte("text"), nil, &n)
	if got, err := other.Open(nil, sealed, nil, &n, &tag, id); !errors.Is(err, ErrForged) || got != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestARingWithoutKeys(t *testing.T) {
	var none *Ring
	n, tag := NewNonce(), [TagBytes]byte{}
	if _, err := none.Open(nil, nil, nil, &n, &tag, 7); !errors.Is(err, ErrUnknownKey) || none.Has(7) || none.KeyIDs() != nil {
		t.Error(err)
	}
	if r, err := New(); err == nil || r != nil {
		t.Error("a ring of no keys was made")
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	for name, keys := range map[string][]Key{
		"twice":      {testKey(1), testKey(2), testKey(1)},
		"zeros":      {{}},
		"not random": {testKey(1), filled(7)},
	} {
		if r, err := New(keys...); err == nil || r != nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if r, err := New(testKey(1), testKey(2)); err != nil || len(r.KeyIDs()) != 2 {
		t.Error(err)
	}
}

// Sealing in place touches nothing but the place.
func TestSealAndOpenInPlace(t *testing.T) {
	r, n, random := ringOf(t, testKey(1)), NewNonce(), seed.Random(t, 0)
	for range 200 {
		before, text, after := random.IntN(50), random.IntN(5000), random.IntN(40)
		b := make([]byte, before+text+after)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		want := bytes.Clone(b)
		sealed, tag, id := r.Seal(b[:before], b[before:before+text], nil, &n)
		if len(sealed) != before+text || !bytes.Equal(b[before+text:], want[before+text:]) || !bytes.Equal(sealed[:before], want[:before]) {
			t.Fatalf("sealing %d bytes of %d changed others", text, len(b))
		}
		if after >= TagBytes && &sealed[0] != &b[0] {
			t.Fatalf("%d bytes of room, and not in place", after)
		}
		got, err := r.Open(sealed[before:before], sealed[before:], nil, &n, &tag, id)
		if err != nil || !bytes.Equal(got, want[before:before+text]) || !bytes.Equal(b[before+text:], want[before+text:]) {
			t.Fatalf("opening %d bytes of %d: %v", text, len(b), err)
		}
	}
}

// A message costs what the cipher of its derived key costs, whatever its length.
func TestAllocations(t *testing.T) {
	r, n := ringOf(t, testKey(1)), NewNonce()
	b := make([]byte, 1<<16, 1<<16+TagBytes)
	aad := make([]byte, 100)
	var tag [TagBytes]byte
	var id uint32
	seal := testing.AllocsPerRun(100, func() { _, tag, id = r.Seal(b[:0], b, aad, &n) })
	sealed := bytes.Clone(b)
	sealed = append(sealed, tag[:]...)[:len(b)]
	dst := make([]byte, 0, len(b))
	open := testing.AllocsPerRun(100, func() {
		if _, err := r.Open(dst, sealed, aad, &n, &tag, id); err != nil {
			t.Fatal(err)
		}
	})
	if seal > 4 || open > 4 {
		t.Errorf("%v allocations to seal and %v to open, want at most 4", seal, open)
	}
}

func TestKeysDoNotPrint(t *testing.T) {
	secret := Key([]byte("this is a key with 32 characters"))
	r := ringOf(t, secret)
	encoded, err := json.Marshal(map[string]any{"key": secret, "ring": r})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("opened", "key", secret, "ring", r)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("opened", "key", secret, "ring", r)
	texts := []string{string(encoded), log.String(), r.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, secret), fmt.Sprintf(verb, &secret), fmt.Sprintf(verb, r), fmt.Sprintf(verb, *r))
	}
	for _, text := range texts {
		for _, shape := range []string{"this is", "746869732069", "746869732069", "116 104 105", "116,104,105", "0x74, 0x68"} {
			if strings.Contains(strings.ToLower(text), shape) {
				t.Errorf("a key is in %s", text)
			}
		}
	}
	if want := "keys [" + KeyName(secret.ID()) + "]"; r.String() != want || fmt.Sprintf("%+v", r) != want {
		t.Errorf("%s, %+v, want %s", r.String(), r, want)
	}
}

func TestNoncesDiffer(t *testing.T) {
	seen := make(map[[NonceBytes]byte]bool)
	for range 1000 {
		seen[NewNonce()] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d of 1000 nonces differ", len(seen))
	}
}

func BenchmarkSeal(b *testing.B) {
	r, aad := ringOf(b, testKey(1)), make([]byte, 4096)
	for _, size := range []int{256 << 10, 2 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			text := make([]byte, size, size+TagBytes)
			b.SetBytes(int64(size))
			for b.Loop() {
				n := NewNonce()
				r.Seal(text[:0], text, aad, &n)
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	r, n, aad := ringOf(b, testKey(1)), NewNonce(), make([]byte, 4096)
	for _, size := range []int{256 << 10, 2 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			sealed, tag, id := r.Seal(nil, make([]byte, size), aad, &n)
			dst := make([]byte, 0, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, err := r.Open(dst, sealed, aad, &n, &tag, id); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
