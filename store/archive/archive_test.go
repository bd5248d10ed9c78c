package archive

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

const prompts, blocks = 20, 10

// exported is a store with records of two shards, and an archive of it.
func exported(t *testing.T) (*disk.Store, connector.NamespaceDigest, []byte) {
	t.Helper()
	s, ns := storetest.Small(t, 64<<20)
	for p := range prompts {
		storetest.SaveSmall(t, s, ns, storetest.SmallChain(connector.Scope{}, p, blocks), 0, 1)
	}
	var out bytes.Buffer
	done, err := Export(t.Context(), s, []*connector.Manifest{storetest.SmallManifest()}, &out)
	if err != nil || done.Records != 2*prompts*blocks || done.Namespaces != 1 || done.Gone+done.Failed != 0 || done.Bytes != done.Records*storetest.SmallPayloadBytes {
		t.Fatalf("%+v, %v", done, err)
	}
	return s, ns, out.Bytes()
}

// has counts the records of the prompts that a store finds.
func has(s *disk.Store, ns connector.NamespaceDigest) (n int) {
	for p := range prompts {
		for _, key := range storetest.SmallChain(connector.Scope{}, p, blocks)[1:] {
			for shard := range connector.Shard(2) {
				if storetest.Has(s, store.RecordID{Namespace: ns, Shard: shard, Key: key}) {
					n++
				}
			}
		}
	}
	return n
}

func TestRecordsGoFromOneStoreToAnother(t *testing.T) {
	from, ns, file := exported(t)
	to, _ := storetest.Small(t, 64<<20)
	for range 2 { // those that are there cost nothing
		done, err := Import(t.Context(), to, iotest.HalfReader(bytes.NewReader(file)))
		if err != nil || done != (Imported{Namespaces: 1, Records: 2 * prompts * blocks, Bytes: 2 * prompts * blocks * storetest.SmallPayloadBytes, Complete: true}) {
			t.Fatalf("%+v, %v", done, err)
		}
	}
	// Everything is as it was: a prefix is found, with proofs.
	for p := range prompts {
		keys := storetest.SmallChain(connector.Scope{}, p, blocks)
		n, lease := to.Lookup(ns, []connector.Shard{0, 1}, keys[1:], 0)
		if to.Release(lease); n != blocks {
			t.Fatalf("%d blocks are found", n)
		}
		read := func(s *disk.Store) *store.ReadOp {
			op := &store.ReadOp{Record: store.Record{ID: store.RecordID{Namespace: ns, Key: keys[blocks]}}, Payload: store.AlignedBuffer(storetest.SmallPayloadBytes)}
			if s.Export(t.Context(), []*store.ReadOp{op}, func(*store.ReadOp) {}); op.Err != nil {
				t.Fatal(op.Err)
			}
			return op
		}
		if a, b := read(from), read(to); a.Record != b.Record || a.Scope != b.Scope || !bytes.Equal(a.Payload, b.Payload) {
			t.Errorf("%+v is %+v in the other store", a.Record, b.Record)
		}
	}
	if done, err := Import(t.Context(), nil, bytes.NewReader(file)); err != nil || done.Records != 2*prompts*blocks || !done.Complete {
		t.Errorf("%+v, %v", done, err)
	}
}

// A flipped bit costs one record, wherever it is, and never brings in a wrong one.
func TestAFlippedBitCostsOneRecord(t *testing.T) {
	_, ns, file := exported(t)
	step := len(file)/60 | 1
	for at := 0; at < len(file); at += step {
		damaged := bytes.Clone(file)
		damaged[at] ^= 1 << (at % 8)
		to, _ := storetest.Small(t, 64<<20)
		done, err := Import(t.Context(), to, bytes.NewReader(damaged))
		if err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		lost := int64(2*prompts*blocks) - done.Records
		inPadding := lost == 0 && done.Damaged == 0
		inNamespace := done.Unknown > 0 && done.Unknown == lost
		if lost > 1 && !inNamespace || !inPadding && !inNamespace && done.Damaged+min(1, done.SkippedBytes) != 1 || has(to, ns) != int(done.Records) {
			t.Fatalf("byte %d: %+v", at, done)
		}
		_ = to.Close()
	}
}

func TestArchivesThatAreNone(t *testing.T) {
	s, _, file := exported(t)
	for name, c := range map[string]struct {
		file []byte
		want func(Imported) bool
	}{
		"nothing": {nil, func(d Imported) bool { return d.Records == 0 && !d.Complete }},
		"zeros":   {make([]byte, 100_000), func(d Imported) bool { return d.Records == 0 && !d.Complete && d.SkippedBytes == 100_000 }},
		"cut":     {file[:len(file)/2], func(d Imported) bool { return d.Records > 0 && !d.Complete }},
		"tail":    {file[4096+64:], func(d Imported) bool { return d.Complete && d.Unknown > 0 && d.SkippedBytes > 0 }},
	} {
		if done, err := Import(t.Context(), s, bytes.NewReader(c.file)); err != nil || !c.want(done) {
			t.Errorf("%s: %+v, %v", name, done, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Import(ctx, s, bytes.NewReader(file)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := Import(t.Context(), s, iotest.TimeoutReader(bytes.NewReader(file))); !errors.Is(err, iotest.ErrTimeout) {
		t.Error(err)
	}
	if _, err := Export(ctx, s, []*connector.Manifest{storetest.SmallManifest()}, io.Discard); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Sizes are looked at before memory is taken, and shards before the store is asked.
func TestHostileFrames(t *testing.T) {
	s, ns := storetest.Small(t, 64<<20)
	manifest := storetest.SmallManifest().Canonical()
	frameOf := func(kind kind, shard connector.Shard, claimed uint32, payload []byte) []byte {
		f := &frame{kind: kind, Record: store.Record{ID: store.RecordID{Namespace: ns, Shard: shard, Key: connector.Key{1}}}, bytes: int(claimed)}
		var out bytes.Buffer
		w := writer{w: newWriter(&out)}
		if err := w.write(f, payload); err != nil {
			t.Fatal(err)
		}
		_ = w.w.Flush()
		b := out.Bytes()
		if claimed != 0 { // with a sum that is right
			f.bytes = int(claimed)
			copy(b, f.append(nil))
		}
		return b
	}
	head := frameOf(kindNamespace, 0, 0, manifest)
	for name, c := range map[string]struct {
		frame []byte
		want  func(Imported, error) bool
	}{
		"huge":      {frameOf(kindRecord, 0, 1<<31, make([]byte, 64)), func(d Imported, err error) bool { return err == nil && d.Records == 0 && d.SkippedBytes > 0 }},
		"largest":   {frameOf(kindRecord, 0, store.MaxPayloadBytes, make([]byte, 64)), func(d Imported, err error) bool { return err == nil && d.Records == 0 && !d.Complete }},
		"shard":     {frameOf(kindRecord, 2, 0, make([]byte, 64)), func(d Imported, err error) bool { return err == nil && d.Unknown == 1 }},
		"size":      {frameOf(kindRecord, 0, 0, make([]byte, 64)), func(d Imported, err error) bool { return err == nil && d.Refused == 1 && d.Refusal != "" }},
		"manifest":  {frameOf(kindNamespace, 0, 0, []byte("{}")), func(d Imported, err error) bool { return err == nil && d.Namespaces == 1 }},
		"newer":     {frameOf(9, 0, 0, []byte("x")), func(_ Imported, err error) bool { return err != nil }},
		"no record": {frameOf(kindRecord, 0, 0, nil), func(d Imported, err error) bool { return err == nil && d.SkippedBytes > 0 }},
	} {
		storetest.SaveSmall(t, s, ns, storetest.SmallChain(connector.Scope{}, 1, 1), 0)
		if done, err := Import(t.Context(), s, bytes.NewReader(append(bytes.Clone(head), c.frame...))); !c.want(done, err) {
			t.Errorf("%s: %+v, %v", name, done, err)
		}
	}
}

func FuzzImport(f *testing.F) {
	m := storetest.SmallManifest()
	var out bytes.Buffer
	w := writer{w: newWriter(&out)}
	_ = w.write(&frame{kind: kindNamespace, Record: store.Record{ID: store.RecordID{Namespace: m.Digest()}}}, m.Canonical())
	_ = w.write(&frame{kind: kindRecord, Record: store.Record{ID: store.RecordID{Namespace: m.Digest()}}}, binary.LittleEndian.AppendUint64(nil, 7))
	_ = w.write(&frame{kind: kindEnd}, nil)
	_ = w.w.Flush()
	f.Add(out.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if done, err := Import(t.Context(), nil, bytes.NewReader(b)); err == nil && done.SkippedBytes > int64(len(b)) {
			t.Errorf("%+v of %d bytes", done, len(b))
		}
	})
}
