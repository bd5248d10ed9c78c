package disk

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/record"
)

// BenchmarkRebuild measures how fast an index is made from record headers alone, for small
// records, which are read in whole stretches, and for large ones, whose headers are read
// one by one. The headers are written directly: the payloads between them do not matter.
func BenchmarkRebuild(b *testing.B) {
	for _, c := range []struct{ payload, records int }{{4 << 10, 200_000}, {64 << 10, 50_000}, {256 << 10, 20_000}} {
		b.Run(fmt.Sprintf("payload=%d", c.payload), func(b *testing.B) { benchmarkRebuild(b, c.payload, c.records) })
	}
}

func benchmarkRebuild(b *testing.B, payload, records int) {
	o := testOptions(b.TempDir())
	slot := segment.SlotBytes(payload)
	o.MaxBytes = 4<<30 + 2*slot*int64(records)
	o.SegmentBytes = 256 << 20
	s := openTest(b, o)
	ns := openNamespace(b, s, "a")
	digest := ns
	id := s.state.ID
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	writeHeaders(b, o.Dir, id, digest, payload, records)
	for b.Loop() {
		b.StopTimer()
		if err := os.RemoveAll(filepath.Join(o.Dir, recovery.JournalDir)); err != nil {
			b.Fatal(err)
		}
		_ = os.Remove(filepath.Join(o.Dir, recovery.SnapshotFile))
		b.StartTimer()
		began := time.Now()
		s, err := Open(context.Background(), o)
		if err != nil {
			b.Fatal(err)
		}
		opened := time.Since(began)
		<-s.rebuild.Ended()
		took := time.Since(began)
		b.StopTimer()
		if n := s.table.Len(); n != records {
			b.Fatalf("%d records, want %d", n, records)
		}
		b.ReportMetric(float64(records)/took.Seconds(), "records/s")
		b.ReportMetric(float64(opened.Milliseconds()), "open-ms")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// writeHeaders makes segments of records whose payloads were never written.
func writeHeaders(b *testing.B, dir string, id record.StoreID, digest connector.NamespaceDigest, payload, records int) {
	b.Helper()
	slot := segment.SlotBytes(payload)
	perSegment := int((256 << 20) / slot)
	buf := store.AlignedBuffer(4 << 20)
	seq := uint64(1) << index.SeqBits
	for first, segment := 0, uint32(100); first < records; first, segment = first+perSegment, segment+1 {
		n := min(perSegment, records-first)
		head := format.Segment{Store: id, ID: segment, Slots: uint32(n), SlotBytes: slot}
		f, err := fsio.OS{}.OpenFile(filepath.Join(dir, recovery.SegmentDir, fmt.Sprintf("seg-%08d.kv", segment)), true, true)
		if err != nil {
			b.Fatal(err)
		}
		if err := f.Allocate(head.FileBytes()); err != nil {
			b.Fatal(err)
		}
		head.Encode(buf[:record.HeaderBytes])
		if err := f.WriteVec(buf[:record.HeaderBytes], nil, 0); err != nil {
			b.Fatal(err)
		}
		clear(buf)
		filled := int64(0)
		flush := func(end uint32) {
			if err := f.WriteVec(buf[:filled], nil, head.Offset(end)-filled); err != nil {
				b.Fatal(err)
			}
			filled = 0
		}
		for i := range n {
			seq++
			r := record.Header{Store: id, SegmentID: segment, Slot: uint32(i), Seq: seq, Namespace: digest,
				Key: keyOf((first+i)/1000, (first+i)%1000), PayloadBytes: uint32(payload)}
			if i > 0 && (first+i)%1000 > 0 {
				r.Parent = keyOf((first+i)/1000, (first+i)%1000-1)
			}
			r.Encode(buf[filled : filled+record.HeaderBytes])
			if filled += slot; filled+slot > int64(len(buf)) || i == n-1 {
				flush(uint32(i) + 1)
			}
		}
		if err := f.Datasync(); err != nil {
			b.Fatal(err)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
