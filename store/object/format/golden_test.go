package format

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/seal"
)

// golden are lists whose bytes stay as they are, by the file that has them. testdata/golden.py wrote
// the files, from the document and not with this code.
func golden() map[string]List {
	counting := func(from byte) (k connector.Key) {
		for i := range k {
			k[i] = from + byte(i)
		}
		return k
	}
	manifest := []byte(`{"engine":"test/1"}`)
	w := WriterID{0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9}
	bucket := BucketID(counting(0xb0))
	o := Object{
		ID: NewObjectID(w, 0x010203), Namespace: sha256.Sum256(manifest), Shard: 0x0405, Bytes: 7*Unit + 322 + TrailerBytes,
		PayloadBytes: 4097, Created: 0x60616263, Used: 0x70717273, Needs: 2, Codec: 1,
		Runs:    []Run{{0, 0x0607, counting(0x10)}, {1, 0, connector.Key{}}},
		Records: []Record{{counting(0x20), 0}, {counting(0x30), 2}, {counting(0x40), 5}},
	}
	small := o
	small.ID, small.Namespace, small.Bytes = NewObjectID(w, 5), connector.NamespaceDigest{9}, 2*Unit+400
	small.Runs, small.Records = []Run{{0, 1, counting(0x50)}}, []Record{{counting(0x60), 0}}
	in := List{
		Name: InName(w, 0x0708), Bucket: bucket, Writer: w, Objects: []Object{o, small},
		Used: []Use{{o.ID, 0x60616264}}, Lost: []Loss{{small.ID, CauseDamaged}},
	}
	log := List{
		Name: LogName(0x090a), Bucket: bucket, Writer: w, Previous: Sum(counting(0xc0)), Objects: []Object{small},
		Removed: []Removal{{o.ID, 0x60616265, CauseAge}}, Deleted: []ObjectID{o.ID}, Sources: []Source{{w, 0x010203040506}},
	}
	return map[string]List{
		"in.bin":        in,
		"in.sealed.bin": in,
		"log.bin":       log,
		"part.bin":      {Name: PartName(1, 0x0b0c, o.ID), Bucket: bucket, Writer: w, Objects: []Object{o}},
		"footer.bin":    {Name: DataName(o.ID), Bucket: bucket, Writer: w, Objects: []Object{o}},
		"namespace.bin": {Name: NamespaceName(o.Namespace), Bucket: bucket, Writer: w, Manifest: manifest},
	}
}

// goldenFile compares b with a file of testdata.
func goldenFile(t *testing.T, name string, b []byte) {
	t.Helper()
	if want, err := os.ReadFile(filepath.Join("testdata", name)); err != nil || !bytes.Equal(b, want) {
		t.Errorf("%s is not what this version writes (%v):\n%x", name, err, b)
	}
}

func TestGoldenLists(t *testing.T) {
	for name, l := range golden() {
		var ring *seal.Ring
		if name == "in.sealed.bin" { // its nonce is another each time: it is decoded alone
			ring = testRing(t, 1)
		} else {
			goldenFile(t, name, encoded(t, &l, nil))
		}
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		l.Sum = SumOf(b)
		if got, err := DecodeList(b, l.Name, l.Bucket, ring); err != nil || !reflect.DeepEqual(*got, l) {
			t.Errorf("%s: %v\n%+v\n%+v", name, err, got, l)
		}
	}
}

func TestGoldenTail(t *testing.T) {
	l := golden()["footer.bin"]
	o := l.Objects[0]
	b, err := o.AppendTail(make([]byte, 7*Unit), l.Bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	goldenFile(t, "tail.bin", b[7*Unit:])
	if o.Bytes != l.Objects[0].Bytes {
		t.Errorf("%d bytes, want %d", o.Bytes, l.Objects[0].Bytes)
	}
}

func TestGoldenSmallFiles(t *testing.T) {
	for name, s := range smalls(t) {
		goldenFile(t, name+".json", mustEncode(t, s))
	}
}
