package storebench

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/index"
)

// Device is a file that is read raw: the device's own speed, against which a load is
// measured in the same run.
type Device struct {
	raw   *raw
	shape shape
}

// NewDevice makes a file of bytes in dir and finds the request size and depth at which
// it is read fastest. Reads go round bufferBytes of memory.
func NewDevice(dir string, bytes, bufferBytes int64) (*Device, error) {
	r, err := newRaw(filepath.Join(dir, "device"), bytes, bufferBytes)
	if err != nil {
		return nil, err
	}
	d := &Device{raw: r}
	if d.shape, err = r.bestShape(false); err != nil {
		_ = r.close()
		return nil, err
	}
	return d, nil
}

// Read reads the file once in random order and returns bytes a second.
func (d *Device) Read() (float64, error) { return d.raw.read(d.shape) }

// Shape names the size and the number of the requests.
func (d *Device) Shape() string { return d.shape.String() }

// Close gives the file's memory and descriptor back; the file stays.
func (d *Device) Close() error { return d.raw.close() }

// Memcpy copies src to dst in pieces of pieceBytes, spread over goroutines, and returns
// bytes a second. Both are equally long.
func Memcpy(dst, src []byte, pieceBytes, goroutines int) float64 {
	pieces := int64((len(src) + pieceBytes - 1) / pieceBytes)
	var next atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range goroutines {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < pieces; i = next.Add(1) - 1 {
				from := int(i) * pieceBytes
				to := min(from+pieceBytes, len(src))
				copy(dst[from:to], src[from:to])
			}
		})
	}
	wg.Wait()
	return float64(len(src)) / time.Since(began).Seconds()
}

// Meter measures wall and processor time of the process.
type Meter struct{ m meter }

// StartMeter begins a measurement.
func StartMeter() Meter { return Meter{startMeter()} }

// Stop returns bytes a second and processor seconds for each GiB of bytes.
func (m Meter) Stop(bytes int64) (bytesPerS, cpuSPerGiB float64) { return m.m.stop(bytes) }

// Median returns the median of x, 0 if it is empty.
func Median(x []float64) float64 { return median(x) }

// Table is the disk tier's table in memory, with chains of [Key] in it.
type Table struct {
	table *index.Table
	refs  []index.Ref
}

// NewTable fills a table with records, which are chains of that many blocks.
func NewTable(ctx context.Context, records, chain int) (*Table, error) {
	t := &Table{table: index.New(), refs: make([]index.Ref, 0, chain)}
	b := tableBench{o: IndexOptions{Records: records, Chain: chain}}
	if err := b.fill(ctx, t.table, records, func(int, spent, bool) {}); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Lookup returns how many leading keys are there, after it pinned and unpinned them as a look-up does. It
// must not be called from several goroutines at once.
func (t *Table) Lookup(keys []connector.Key) int {
	n, pins := t.table.Prefix(0, []connector.Shard{0}, keys, t.refs[:0])
	t.table.Unpin(pins...)
	return n
}

// Close gives the table's memory back.
func (t *Table) Close() { t.table.Close() }
