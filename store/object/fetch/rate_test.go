package fetch

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	objects "github.com/kvconn/kvconn/store/object/format"
)

// The sizes of payloads that are measured, and the bytes of one round.
const roundBytes = 128 << 20

func payloads() []int { return []int{256 << 10, 2 << 20} }

// overLoopback is a bench whose server is reached through a socket.
func overLoopback(b *testing.B) (*bench, string) {
	server := s3mem.New(s3mem.Options{}, "bucket")
	at := httptest.NewServer(server)
	b.Cleanup(at.Close)
	x := newBench(b, func(bo *bucket.Options, _ *Options) { bo.Endpoint, bo.Transport = at.URL, nil })
	b.Cleanup(func() {
		x.Close()
		x.bucket.Close()
	})
	return x, at.URL
}

// fill puts objects of about 16 MiB for a round.
func fill(x *bench, payloadBytes int) (records []*written) {
	for len(records)*payloadBytes < roundBytes {
		records = append(records, x.put((16<<20)/payloadBytes, payloadBytes)...)
	}
	return records
}

// BenchmarkFetch reads and verifies records with the fetcher, in calls of 16 as the host tier makes them, 8 at
// one time.
func BenchmarkFetch(b *testing.B) {
	for _, payloadBytes := range payloads() {
		b.Run(fmt.Sprintf("%dKiB", payloadBytes>>10), func(b *testing.B) {
			x, _ := overLoopback(b)
			ops := opsOf(fill(x, payloadBytes)...)
			b.SetBytes(roundBytes)
			b.ReportAllocs()
			for b.Loop() {
				parallel(8, len(ops)/16, func(i int) {
					x.Read(b.Context(), ops[i*16:(i+1)*16], func(op *store.ReadOp) {
						if op.Err != nil {
							b.Error(op.Err)
						}
					})
				})
			}
			s := x.Stats()
			b.ReportMetric(float64(s.Records)/float64(s.Ranges), "records/GET")
		})
	}
}

// BenchmarkRaw is what the same ranges cost with nothing but the library: 8 at one time, into memory of its
// own for each, and without any verification.
func BenchmarkRaw(b *testing.B) {
	for _, payloadBytes := range payloads() {
		b.Run(fmt.Sprintf("%dKiB", payloadBytes>>10), func(b *testing.B) {
			x, url := overLoopback(b)
			records := fill(x, payloadBytes)
			core, err := minio.NewCore(strings.TrimPrefix(url, "http://"), &minio.Options{
				Creds: credentials.NewStaticV4("id", "secret", ""), Region: "here", BucketLookup: minio.BucketLookupPath,
			})
			if err != nil {
				b.Fatal(err)
			}
			const rangeBytes = 8 << 20
			each := rangeBytes / payloadBytes
			rangeSlots := each * int(objects.SlotBytes(payloadBytes))
			memory := make([]byte, len(records)/each*rangeSlots)
			b.SetBytes(roundBytes)
			b.ReportAllocs()
			for b.Loop() {
				parallel(8, len(records)/each, func(i int) {
					first, last := records[i*each].place, records[(i+1)*each-1].place
					var o minio.GetObjectOptions
					if err := o.SetRange(first.From, last.From+last.Bytes-1); err != nil {
						b.Error(err)
					}
					body, _, _, err := core.GetObject(b.Context(), "bucket", "prefix/"+objects.DataName(first.Object).String(), o)
					if err != nil {
						b.Error(err)
						return
					}
					defer body.Close()
					if _, err := io.ReadFull(body, memory[i*rangeSlots:(i+1)*rangeSlots]); err != nil {
						b.Error(err)
					}
				})
			}
		})
	}
}

// A connection is used again when its range was read to the end, also where its last record is shorter than its
// slot.
func TestConnectionsAreUsedAgain(t *testing.T) {
	server := s3mem.New(s3mem.Options{}, "bucket")
	at := httptest.NewUnstartedServer(server)
	var made atomic.Int64
	at.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			made.Add(1)
		}
	}
	at.Start()
	defer at.Close()
	b := newBench(t, func(bo *bucket.Options, _ *Options) { bo.Endpoint, bo.Transport = at.URL, nil })
	defer b.bucket.Close()
	defer b.Close()
	records := b.put(8, small)
	for range 20 {
		b.read(t.Context(), opsOf(records[1], records[3], records[6])...)
	}
	if n := made.Load(); n > 2 { // a hedge may have had one
		t.Errorf("%d connections were made", n)
	}
	if s := b.Stats(); s.Records != 60 {
		t.Errorf("stats %+v", s)
	}
}

// parallel calls f with 0 to n-1, some at one time.
func parallel(workers, n int, f func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				f(int(i))
			}
		})
	}
	all.Wait()
}
