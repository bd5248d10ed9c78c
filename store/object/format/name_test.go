package format

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/property"
)

// names are one of each kind, with their text. Names in buckets stay as they are.
func names() map[string]Name {
	w := WriterID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	id := NewObjectID(w, 0x0a0b0c0d0e0f)
	return map[string]Name{
		"kv1/format": {Kind: KindFormat},
		"kv1/head":   {Kind: KindHead},
		"kv1/lease":  {Kind: KindLease},
		"kv1/ns/ab00000000000000000000000000000000000000000000000000000000000000":     NamespaceName(connector.NamespaceDigest{0xab}),
		"kv1/d/db/000102030405060708090a0b0c0d0e0f":                                   DataName(id),
		"kv1/in/00010203040506070809-00000000002a":                                    InName(w, 42),
		"kv1/log/0000000000000100":                                                    LogName(256),
		"kv1/part/0000000000000001-0000000000000100-000102030405060708090a0b0c0d0e0f": PartName(1, 256, id),
		"kv1/probe/00010203040506070809":                                              ProbeName(w),
	}
}

func TestNames(t *testing.T) {
	for text, n := range names() {
		if got := n.String(); got != text {
			t.Errorf("%s, want %s", got, text)
		}
		if got, err := ParseName(text); err != nil || got != n {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, n)
		}
	}
	if s := (Name{}).String(); s != "" {
		t.Errorf("a name of no kind is %q", s)
	}
}

func TestNamesSortInTheirSequence(t *testing.T) {
	var w WriterID
	for _, list := range [][]Name{
		{LogName(1), LogName(9), LogName(16), LogName(255), LogName(256), LogName(1 << 63)},
		{InName(w, 0), InName(w, 9), InName(w, 255), InName(w, MaxCounter)},
	} {
		texts := make([]string, len(list))
		for i, n := range list {
			texts[i] = n.String()
		}
		if !slices.IsSorted(texts) {
			t.Errorf("not in sequence: %v", texts)
		}
	}
}

func TestWhatIsNoName(t *testing.T) {
	bad := []string{
		"", "kv1", "kv1/", "kv1//", "kv1/heads", "kv1/head/", "kv1/Head", "kv2/head", "/kv1/head", "head", "kv1/log/", "kv1/log",
		"kv1/log/0000000000000000", "kv1/log/000000000000001", "kv1/log/00000000000000001", "kv1/log/000000000000000A", "kv1/log/-000000000000001",
		"kv1/log/0000000000000001/", "kv1/log/0000000000000001.tmp", "kv1/in/00010203040506070809", "kv1/in/00010203040506070809-",
		"kv1/in/00010203040506070809-0000000000002a", "kv1/in/00010203040506070809-00000000002a-0", "kv1/in/000102030405060708-00000000002a",
		"kv1/d/00/000102030405060708090a0b0c0d0e0f", "kv1/d/000102030405060708090a0b0c0d0e0f", "kv1/d/db/8f/000102030405060708090a0b0c0d0e0f",
		"kv1/part/0000000000000002-0000000000000001-000102030405060708090a0b0c0d0e0f", "kv1/part/0000000000000001-0000000000000001",
		"kv1/part/0000000000000000-0000000000000001-000102030405060708090a0b0c0d0e0f", "kv1/ns/ab", "kv1/other/ab", "kv1/probe/ab",
		"kv1/" + strings.Repeat("a", 1<<20),
	}
	for text := range names() {
		bad = append(bad, " "+text, text+" ", text+"\x00", strings.ToUpper(text), strings.Replace(text, "/", "//", 1))
	}
	for _, text := range bad {
		n, err := ParseName(text)
		if !errors.Is(err, ErrBad) || n != (Name{}) {
			t.Errorf("%.80q is %+v, %v", text, n, err)
		} else if len(err.Error()) > 1000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	}
}

func TestEveryNameIsParsed(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		k := Kind(rapid.IntRange(int(KindFormat), int(KindProbe)).Draw(t, "kind"))
		n := drawName(t, k, []byte("manifest"))
		got, err := ParseName(n.String())
		if err != nil || got != n {
			t.Fatalf("%s: %+v, %v, want %+v", n, got, err, n)
		}
		if len(n.String()) > maxNameBytes {
			t.Fatalf("%s is too long", n)
		}
	})
}

func TestObjectIDs(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		w, counter := drawWriter(t), rapid.Uint64Range(0, MaxCounter).Draw(t, "counter")
		if id := NewObjectID(w, counter); id.Writer() != w || id.Counter() != counter {
			t.Fatalf("%s is %d of %s, want %d of %s", id, id.Counter(), id.Writer(), counter, w)
		}
	})
	w, b := NewWriterID(), NewBucketID()
	if w == NewWriterID() || b == NewBucketID() {
		t.Error("identities are not drawn at random")
	}
}

// Data objects lie below 256 prefixes, about as many below each.
func TestDataObjectsAreSpread(t *testing.T) {
	count := make(map[string]int)
	for i := range uint64(256 * 64) {
		name := DataName(NewObjectID(WriterID{7}, i)).String()
		count[name[:len(DataPrefix)+2]]++
	}
	for prefix, n := range count {
		if n < 16 || n > 160 {
			t.Errorf("%d of %d objects are below %s", n, 256*64, prefix)
		}
	}
	if len(count) != 256 {
		t.Errorf("%d prefixes", len(count))
	}
}

func FuzzParseName(f *testing.F) {
	for text := range names() {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseName(text)
		switch {
		case err == nil && n.String() != text:
			t.Errorf("%q became %q", text, n)
		case err != nil && (!errors.Is(err, ErrBad) || n != (Name{})):
			t.Errorf("%q: %+v, %v", text, n, err)
		}
	})
}
