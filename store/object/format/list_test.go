package format

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"reflect"
	"runtime"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/property"
	"github.com/kvconn/kvconn/store/seal"
)

// stamp makes the checksums of a list right again.
func stamp(b []byte) []byte {
	binary.LittleEndian.PutUint64(b[offListSum:], headerSum(b))
	end := len(b) - listTailBytes
	sum := SumOf(b[:end])
	copy(b[end:], sum[:])
	return b
}

// encoded is a list that must be encoded.
func encoded(t testing.TB, l *List, ring *seal.Ring) []byte {
	t.Helper()
	b, err := l.Encode(ring)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sample is a list of a kind with something in each section that it may have.
func sample(k Kind) List {
	l := rapid.Custom(func(t *rapid.T) List {
		l := drawList(t, k)
		if k == KindNamespace || k == KindData {
			return l
		}
		l.Objects = append(l.Objects, drawObject(t))
		l.Used = append(l.Used, Use{drawID(t), 7})
		l.Removed = append(l.Removed, Removal{drawID(t), 8, CauseAge})
		l.Deleted = append(l.Deleted, drawID(t))
		if k == KindIn {
			l.Lost = append(l.Lost, Loss{drawID(t), CauseLost})
		}
		if k == KindLog {
			l.Sources = append(l.Sources, Source{drawWriter(t), 9})
		}
		return l
	})
	return l.Example(int(k))
}

func TestListsRoundTrip(t *testing.T) {
	sealing := testRing(t, 1)
	for _, k := range listKinds() {
		property.Check(t, func(t *rapid.T) {
			want := drawList(t, k)
			var ring *seal.Ring
			if rapid.Bool().Draw(t, "sealed") {
				ring = sealing
			}
			b, err := want.Encode(ring)
			if err != nil {
				t.Fatal(err)
			}
			want.Sum = SumOf(b)
			if n, err := want.Bytes(); cap(b) != len(b) || err != nil || n != int64(len(b)) {
				t.Fatalf("%d bytes were allocated for %d of %d, %v", cap(b), len(b), n, err)
			}
			got, err := DecodeList(b, want.Name, want.Bucket, ring)
			if err != nil || !reflect.DeepEqual(*got, want) {
				t.Fatalf("%s: %v\n%+v\n%+v", want.Name, err, got, want)
			}
			clear(b)
			if !reflect.DeepEqual(*got, want) {
				t.Fatal("what was decoded refers to the bytes it came from")
			}
		})
	}
}

func TestEveryFlippedBitOfAListIsFound(t *testing.T) {
	for _, ring := range []*seal.Ring{nil, testRing(t, 1)} {
		for _, k := range listKinds() {
			l := sample(k)
			whole := encoded(t, &l, ring)
			step := 1 + len(whole)/4096 // bits of a long one by samples
			for bit := 0; bit < 8*len(whole); bit += step {
				b := bytes.Clone(whole)
				b[bit/8] ^= 1 << (bit % 8)
				if got, err := DecodeList(b, l.Name, l.Bucket, ring); !errors.Is(err, ErrBad) || !Damaged(err) || got != nil {
					t.Fatalf("%s, bit %d of %d: %v", l.Name, bit, 8*len(whole), err)
				}
			}
			if _, err := DecodeList(bytes.Clone(whole), l.Name, l.Bucket, ring); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestListsThatWereCutOrExtended(t *testing.T) {
	for _, k := range listKinds() {
		l := sample(k)
		whole := encoded(t, &l, nil)
		for n := range whole {
			if _, err := DecodeList(bytes.Clone(whole[:n]), l.Name, l.Bucket, nil); !errors.Is(err, ErrBad) {
				t.Fatalf("%s, %d bytes of %d: %v", l.Name, n, len(whole), err)
			}
		}
		if _, err := DecodeList(append(bytes.Clone(whole), 0), l.Name, l.Bucket, nil); !errors.Is(err, ErrBad) {
			t.Errorf("%s, a byte more: %v", l.Name, err)
		}
	}
}

// What is below another name, of another bucket, or of other keys.
func TestListsOfOthers(t *testing.T) {
	one, other := testRing(t, 1), testRing(t, 2)
	for _, k := range listKinds() {
		l, elsewhere := sample(k), sample(k)
		plain, sealed := encoded(t, &l, nil), encoded(t, &l, one)
		elsewhere.Name.Number++
		elsewhere.Name.Object[0] ^= 1
		elsewhere.Name.Writer[0] ^= 1
		elsewhere.Name.Namespace[0] ^= 1
		for _, c := range []struct {
			what   string
			b      []byte
			name   Name
			bucket BucketID
			ring   *seal.Ring
			want   error
		}{
			{"another name", plain, elsewhere.Name, l.Bucket, nil, ErrBad},
			{"another name, sealed", sealed, elsewhere.Name, l.Bucket, one, ErrBad},
			{"no list", plain, Name{Kind: KindHead}, l.Bucket, nil, ErrBad},
			{"another bucket", plain, l.Name, BucketID{1}, nil, ErrForeign},
			{"another bucket, sealed", sealed, l.Name, BucketID{1}, one, ErrForeign},
			{"another key", sealed, l.Name, l.Bucket, other, seal.ErrUnknownKey},
			{"no key", sealed, l.Name, l.Bucket, nil, seal.ErrUnknownKey},
			{"not sealed", plain, l.Name, l.Bucket, one, ErrUnsealed},
		} {
			got, err := DecodeList(bytes.Clone(c.b), c.name, c.bucket, c.ring)
			if !errors.Is(err, c.want) || got != nil || Damaged(err) != (c.want == ErrBad) {
				t.Errorf("%s, %s: %v", l.Name, c.what, err)
			}
		}
		for _, other := range listKinds() {
			if other != k {
				n := sample(other).Name
				if _, err := DecodeList(bytes.Clone(plain), n, l.Bucket, nil); !errors.Is(err, ErrBad) && !errors.Is(err, ErrTooLarge) {
					t.Errorf("%s below %s: %v", l.Name, n, err)
				}
			}
		}
	}
}

// withSection appends a section to a list that is not sealed.
func withSection(b []byte, s section, needed bool, count uint32, entries []byte) []byte {
	end := len(b) - listTailBytes
	h := sectionHeader{s, needed, count, uint32(len(entries))}
	more := make([]byte, sectionHeaderBytes)
	h.encode(more)
	b = append(append(bytes.Clone(b[:end]), more...), entries...)
	b = append(b, make([]byte, listTailBytes)...)
	le := binary.LittleEndian
	le.PutUint32(b[offListBody:], uint32(len(b)-listOverhead))
	le.PutUint32(b[offListSections:], le.Uint32(b[offListSections:])+1)
	return stamp(b)
}

// What a newer program wrote is neither damaged nor applied, unless it may be passed over.
func TestNewerListsAreToldFromBadOnes(t *testing.T) {
	for _, k := range listKinds() {
		l := sample(k)
		whole := encoded(t, &l, nil)
		changed := func(at int, to byte) []byte {
			b := bytes.Clone(whole)
			b[at] = to
			return stamp(b)
		}
		for name, b := range map[string][]byte{
			"version":        changed(offListVersion, Version+1),
			"large version":  stamp(append(changed(offListVersion, Version+1), make([]byte, MaxLogBytes)...)),
			"flag":           changed(offListFlags, 2),
			"needed section": withSection(whole, sectionsEnd, true, 3, []byte("new entries")),
		} {
			if _, err := DecodeList(bytes.Clone(b), l.Name, l.Bucket, nil); !errors.Is(err, ErrNewer) || errors.Is(err, ErrBad) || Damaged(err) {
				t.Errorf("%s, %s: %v", l.Name, name, err)
			}
			b[len(b)-listTailBytes-1] ^= 1
			if name == "needed section" {
				if _, err := DecodeList(b, l.Name, l.Bucket, nil); !errors.Is(err, ErrBad) || errors.Is(err, ErrNewer) {
					t.Errorf("%s, %s, damaged: %v", l.Name, name, err)
				}
			}
		}
		if _, err := DecodeList(changed(offListVersion, 0), l.Name, l.Bucket, nil); !errors.Is(err, ErrBad) {
			t.Errorf("%s, version 0: %v", l.Name, err)
		}
		b := withSection(whole, 200, false, 3, []byte("new entries"))
		l.Sum = SumOf(b)
		if got, err := DecodeList(b, l.Name, l.Bucket, nil); err != nil || !reflect.DeepEqual(*got, l) {
			t.Errorf("%s, a section that may be passed over: %v", l.Name, err)
		}
	}
}

// Bodies with right checksums that no writer makes.
func TestHostileLists(t *testing.T) {
	in, log := sample(KindIn), sample(KindLog)
	in.Objects, in.Used, in.Removed, in.Deleted, in.Lost = in.Objects[:1], nil, nil, nil, nil
	whole := encoded(t, &in, nil)
	objects := listHeaderBytes + sectionHeaderBytes + digestBytes // the section's header
	entry := objects + sectionHeaderBytes
	runs := entry + objectEntryBytes
	records := runs + len(in.Objects[0].Runs)*runEntryBytes
	last := len(whole) - listTailBytes - 2 // start of the last record
	le := binary.LittleEndian
	for name, change := range map[string]func(b []byte){
		"more sections":             func(b []byte) { le.PutUint32(b[offListSections:], 1<<31) },
		"fewer sections":            func(b []byte) { b[offListSections]-- },
		"no sections":               func(b []byte) { le.PutUint32(b[offListSections:], 0) },
		"longer body":               func(b []byte) { le.PutUint32(b[offListBody:], 1<<32-1) },
		"shorter body":              func(b []byte) { b[offListBody]-- },
		"section 0":                 func(b []byte) { b[listHeaderBytes] = 0 },
		"section twice":             func(b []byte) { b[objects] = byte(sectionNamespaces) },
		"section of another kind":   func(b []byte) { b[objects] = byte(sectionSources) },
		"a billion objects":         func(b []byte) { le.PutUint32(b[objects+4:], 1<<30) },
		"two objects":               func(b []byte) { b[objects+4] = 2 },
		"no object":                 func(b []byte) { b[objects+4] = 0 },
		"a billion namespaces":      func(b []byte) { le.PutUint32(b[listHeaderBytes+4:], 1<<30) },
		"two namespaces":            func(b []byte) { b[listHeaderBytes+4] = 2 },
		"a section of a gigabyte":   func(b []byte) { le.PutUint32(b[objects+8:], 1<<30) },
		"a section too short":       func(b []byte) { b[objects+8]-- },
		"namespace 7":               func(b []byte) { b[entry+16] = 7 },
		"65535 records":             func(b []byte) { le.PutUint16(b[entry+20:], 1<<16-1) },
		"no records":                func(b []byte) { le.PutUint16(b[entry+20:], 0) },
		"65535 runs":                func(b []byte) { le.PutUint16(b[entry+22:], 1<<16-1) },
		"no runs":                   func(b []byte) { le.PutUint16(b[entry+22:], 0) },
		"4 GiB":                     func(b []byte) { le.PutUint32(b[entry+24:], 1<<32-1) },
		"0 bytes":                   func(b []byte) { le.PutUint32(b[entry+24:], 0) },
		"empty payloads":            func(b []byte) { le.PutUint32(b[entry+28:], 0) },
		"payloads of 4 GiB":         func(b []byte) { le.PutUint32(b[entry+28:], 1<<32-1) },
		"first run late":            func(b []byte) { b[runs] = 1 },
		"first record late":         func(b []byte) { b[records+connector.KeySize] = 1 },
		"last record past the end":  func(b []byte) { le.PutUint16(b[last:], 1<<16-1) },
		"last record at the others": func(b []byte) { le.PutUint16(b[last:], 1) },
	} {
		b := bytes.Clone(whole)
		change(b)
		got, err := DecodeList(stamp(b), in.Name, in.Bucket, nil)
		if !errors.Is(err, ErrBad) || got != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := DecodeList(stamp(whole), in.Name, in.Bucket, nil); err != nil || len(got.Objects) != 1 {
		t.Error(err)
	}
	log.Sources = nil
	for name, b := range map[string][]byte{
		"lost in a log":      withSection(encoded(t, &log, nil), sectionLost, true, 0, nil),
		"sources of a list":  withSection(encoded(t, &in, nil), sectionSources, true, 0, nil),
		"manifest of a list": withSection(encoded(t, &in, nil), sectionManifest, true, 1, []byte("{}")),
	} {
		l := map[bool]List{true: log, false: in}[name == "lost in a log"]
		if _, err := DecodeList(b, l.Name, l.Bucket, nil); !errors.Is(err, ErrBad) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A list that says it has much costs no more memory than it is long.
func TestHostileListsCostNoMemory(t *testing.T) {
	l := sample(KindPart)
	b := encoded(t, &l, nil)
	for at := listHeaderBytes; at < len(b)-listTailBytes-4; at++ {
		c := bytes.Clone(b)
		binary.LittleEndian.PutUint32(c[at:], 1<<31-1)
		stamp(c)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = DecodeList(c, l.Name, l.Bucket, nil)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<10+8*uint64(len(b)) {
			t.Fatalf("%d bytes for a list of %d, changed at %d", took, len(b), at)
		}
	}
}

func TestWhatCannotBeEncoded(t *testing.T) {
	for name, change := range map[string]func(l *List){
		"no list":       func(l *List) { l.Name = Name{Kind: KindLease} },
		"sources":       func(l *List) { l.Sources = []Source{{}} },
		"manifest":      func(l *List) { l.Manifest = []byte("{}") },
		"long sequence": func(l *List) { l.Name.Number = MaxCounter + 1 },
		"no records":    func(l *List) { l.Objects[0].Records = nil },
		"no runs":       func(l *List) { l.Objects[0].Runs = nil },
		"wrong size":    func(l *List) { l.Objects[0].Bytes = 100 },
	} {
		l := sample(KindIn)
		change(&l)
		if b, err := l.Encode(nil); !errors.Is(err, ErrInvalid) || b != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, l := range map[string]List{
		"sequence of a source": {Name: LogName(1), Sources: []Source{{Sequence: MaxCounter + 1}}},
		"another manifest":     {Name: NamespaceName(connector.NamespaceDigest{1}), Manifest: []byte("{}")},
		"no manifest":          {Name: NamespaceName(connector.NamespaceDigest{1})},
		"footer of none":       {Name: DataName(ObjectID{1})},
	} {
		if b, err := l.Encode(nil); !errors.Is(err, ErrInvalid) || b != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	large := List{Name: InName(WriterID{}, 1), Deleted: make([]ObjectID, MaxInBytes/idBytes)}
	if b, err := large.Encode(nil); !errors.Is(err, ErrTooLarge) || b != nil {
		t.Error(err)
	}
	large.Name = LogName(1)
	b := encoded(t, &large, nil)
	if _, err := DecodeList(b, InName(WriterID{}, 1), BucketID{}, nil); !errors.Is(err, ErrTooLarge) || !Damaged(err) {
		t.Error(err)
	}
}

// 16 records of one run take 22 bytes each.
func TestListsAreShort(t *testing.T) {
	o := Object{Runs: make([]Run, 1), Records: make([]Record, 16)}
	if perRecord := float64(o.ListBytes()) / 16; perRecord > 22 {
		t.Errorf("%v bytes a record", perRecord)
	}
}

func TestCausesHaveNames(t *testing.T) {
	seen := make(map[string]bool)
	for c := range CauseDamaged + 2 {
		seen[c.String()] = true
	}
	if len(seen) != int(CauseDamaged)+2 {
		t.Errorf("%v", seen)
	}
}

// fuzzName is the name that a list of a kind may have, taken from its header and body.
func fuzzName(k Kind, b []byte) Name {
	le := binary.LittleEndian
	number := le.Uint64(b[offListNumber:])
	w := WriterID(b[offListWriter:])
	switch k {
	case KindIn:
		return InName(w, number&MaxCounter)
	case KindLog:
		return LogName(number)
	case KindPart:
		return PartName(1, number, ObjectID{})
	case KindData:
		return DataName(NewObjectID(w, number&MaxCounter))
	}
	body := b[listHeaderBytes : len(b)-listTailBytes]
	return NamespaceName(manifestDigest(body))
}

func FuzzDecodeList(f *testing.F) {
	for i, k := range listKinds() {
		l := sample(k)
		f.Add(uint8(i), encoded(f, &l, nil))
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		if _, err := DecodeList(bytes.Clone(b), LogName(1), BucketID{}, nil); err == nil {
			t.Log("a list of itself")
		}
		if len(b) < listOverhead {
			return
		}
		// Without all this no input gets past the header.
		k := listKinds()[int(kind)%len(listKinds())]
		name, bucket := fuzzName(k, b), BucketID(b[offListBucket:])
		form, _ := formOf(k)
		b = bytes.Clone(b)
		copy(b, listMagic)
		binary.LittleEndian.PutUint16(b[offListVersion:], Version)
		b[offListKind], b[offListFlags] = form.number, 0
		binary.LittleEndian.PutUint64(b[offListNumber:], name.Number|name.Object.Counter())
		if k == KindNamespace {
			binary.LittleEndian.PutUint64(b[offListNumber:], 0)
		}
		binary.LittleEndian.PutUint32(b[offListBody:], uint32(len(b)-listOverhead))
		l, err := DecodeList(stamp(b), name, bucket, nil)
		if err != nil {
			return
		}
		again, err := l.Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		l2, err := DecodeList(again, name, bucket, nil)
		if err != nil {
			t.Fatal(err)
		}
		if l2.Sum = l.Sum; !reflect.DeepEqual(l, l2) {
			t.Errorf("%+v became %+v", l, l2)
		}
	})
}

func manifestDigest(body []byte) connector.NamespaceDigest {
	var h sectionHeader
	entries, _, err := h.next(body)
	if err != nil {
		return connector.NamespaceDigest{}
	}
	return sha256.Sum256(entries)
}
