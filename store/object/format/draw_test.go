package format

import (
	"crypto/sha256"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/seal"
)

// testRing is a ring of one key, which differs by its number.
func testRing(t testing.TB, number byte) *seal.Ring {
	t.Helper()
	var k seal.Key
	for i := range k {
		k[i] = number + byte(i*i)
	}
	r, err := seal.New(k)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// listKinds are the kinds of names that lists have.
func listKinds() []Kind { return []Kind{KindIn, KindLog, KindPart, KindData, KindNamespace} }

func fill(t *rapid.T, label string, b []byte) {
	copy(b, rapid.SliceOfN(rapid.Byte(), len(b), len(b)).Draw(t, label))
}

func drawID(t *rapid.T) (id ObjectID) {
	fill(t, "object", id[:])
	return id
}

func drawWriter(t *rapid.T) (w WriterID) {
	fill(t, "writer", w[:])
	return w
}

func drawKey(t *rapid.T) (k connector.Key) {
	fill(t, "key", k[:])
	return k
}

// several draws up to most elements; no elements are a nil slice.
func several[E any](t *rapid.T, label string, most int, draw func(t *rapid.T) E) (all []E) {
	for range rapid.IntRange(0, most).Draw(t, label) {
		all = append(all, draw(t))
	}
	return all
}

// drawObject draws an object of one of two namespaces.
func drawObject(t *rapid.T) Object {
	o := Object{
		ID: drawID(t), Namespace: connector.NamespaceDigest{rapid.ByteRange(1, 2).Draw(t, "namespace")},
		Shard: connector.Shard(rapid.Uint16().Draw(t, "shard")), PayloadBytes: rapid.Uint32Range(1, store.MaxPayloadBytes).Draw(t, "payload"),
		Created: Seconds(rapid.Uint32().Draw(t, "created")), Used: Seconds(rapid.Uint32().Draw(t, "used")),
		Needs: rapid.Uint16().Draw(t, "needs"), Codec: rapid.Byte().Draw(t, "codec"),
	}
	start := 0
	for i := range rapid.IntRange(1, 12).Draw(t, "records") {
		o.Records = append(o.Records, Record{Key: drawKey(t), Start: uint16(start)})
		start += rapid.IntRange(minSlotUnits, 20).Draw(t, "units")
		if i == 0 || rapid.Bool().Draw(t, "another run") {
			o.Runs = append(o.Runs, Run{First: uint16(i), Depth: rapid.Uint16().Draw(t, "depth"), Parent: drawKey(t)})
		}
	}
	o.Bytes = uint32(int64(start)*Unit + o.footerBytes() + TrailerBytes)
	return o
}

// drawName draws a name of a kind, that of a namespace for its manifest.
func drawName(t *rapid.T, k Kind, manifest []byte) Name {
	switch k {
	case KindNamespace:
		return NamespaceName(sha256.Sum256(manifest))
	case KindData:
		return DataName(drawID(t))
	case KindIn:
		return InName(drawWriter(t), rapid.Uint64Range(0, MaxCounter).Draw(t, "sequence"))
	case KindLog:
		return LogName(rapid.Uint64Min(1).Draw(t, "n"))
	case KindPart:
		last := rapid.Uint64Min(1).Draw(t, "last")
		return PartName(rapid.Uint64Range(1, last).Draw(t, "first"), last, drawID(t))
	case KindProbe:
		return ProbeName(drawWriter(t))
	}
	return Name{Kind: k}
}

// drawList draws a list of a kind.
func drawList(t *rapid.T, k Kind) List {
	var l List
	fill(t, "bucket", l.Bucket[:])
	fill(t, "previous", l.Previous[:])
	if k == KindNamespace {
		l.Manifest = rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "manifest")
	}
	l.Name, l.Writer = drawName(t, k, l.Manifest), drawWriter(t)
	_, l.Writer = l.Name.header(l.Writer)
	cause := func(t *rapid.T) Cause { return Cause(rapid.Byte().Draw(t, "cause")) }
	when := func(t *rapid.T) Seconds { return Seconds(rapid.Uint32().Draw(t, "when")) }
	switch k {
	case KindNamespace:
		return l
	case KindData:
		o := drawObject(t)
		o.ID = l.Name.Object
		l.Objects = []Object{o}
		return l
	case KindIn:
		l.Lost = several(t, "lost", 3, func(t *rapid.T) Loss { return Loss{drawID(t), cause(t)} })
	case KindLog:
		l.Sources = several(t, "sources", 3, func(t *rapid.T) Source {
			return Source{drawWriter(t), rapid.Uint64Range(0, MaxCounter).Draw(t, "sequence")}
		})
	}
	l.Objects = several(t, "objects", 4, drawObject)
	l.Used = several(t, "used", 3, func(t *rapid.T) Use { return Use{drawID(t), when(t)} })
	l.Removed = several(t, "removed", 3, func(t *rapid.T) Removal { return Removal{drawID(t), when(t), cause(t)} })
	l.Deleted = several(t, "deleted", 3, drawID)
	return l
}
