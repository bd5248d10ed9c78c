package fetch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/codec"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

// Getter reads objects of a bucket, as [bucket.Client] does.
type Getter interface {
	Get(ctx context.Context, name string, from, bytes int64) (*bucket.Body, error)
}

// Catalog knows where records are. Its methods are called from many goroutines and wait for no I/O.
type Catalog interface {
	// Locate says where a record is whose payload has that many bytes, if it is known.
	Locate(id store.RecordID, payloadBytes int) (catalog.Place, bool)
	// Lost takes an object out of the catalog, and reports it to the other nodes. It is called again for
	// what it was told before.
	Lost(o format.ObjectID, why format.Cause)
}

// Options are what a [Fetcher] works with. The zero value of a field means its default.
type Options struct {
	Bucket  Getter
	Catalog Catalog
	// Ring has the keys that records are sealed with. With one, only sealed records are accepted.
	Ring *seal.Ring
	// Codec decodes records that are compressed. Default: one with a worker a connection.
	Codec *codec.Codec
	// Name is what [store.ReadOp].From says of records. Default "object".
	Name string
	// InFlightBytes bounds what is asked of the bucket and has not come. Default 64 MiB: 640 MB/s at
	// 100 ms, and what is lost at most where loads are aborted. It is less while the bucket delivers less than
	// 100 MB/s.
	InFlightBytes int64
	// Connections bounds the requests at one time, hedges included. Default 32: HTTP/1.1 has one transfer
	// on each, of 100 MB/s at most on AWS.
	Connections int
	// RangeBytes is how far from the start of a range its last record may begin. Default 8 MiB: a request
	// costs $0.05 a TB then, and one that is repeated loses a tenth of a second.
	RangeBytes int64
	// GapBytes between two records are read through. Default 256 KiB: as long as 2.5 ms on one connection,
	// a tenth of what another request would take.
	GapBytes int64
	// Gather is how long ops wait for others with which they share a range. Default 1 ms: little beside
	// a request, and enough for all that a load asks for at one time.
	Gather time.Duration
	// Timeout is how long a record may take from its first request. Default 5 s: a load that waits longer
	// had better compute.
	Timeout time.Duration
	// Stall is how long a body may go without a byte before the rest is asked for again. Default 1 s.
	Stall time.Duration
	// HedgeAfter is the least time without the head of an answer after which a second request is sent. It is
	// sent no sooner than after twice what 95% of heads took. Default 200 ms.
	HedgeAfter time.Duration
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// EnsureDefaults fills in every field that is zero, but for Bucket, Catalog, Ring and Codec.
func (o *Options) EnsureDefaults() {
	o.Name = cmp.Or(o.Name, "object")
	o.InFlightBytes = cmp.Or(o.InFlightBytes, 64<<20)
	o.Connections = cmp.Or(o.Connections, 32)
	o.RangeBytes = cmp.Or(o.RangeBytes, 8<<20)
	o.GapBytes = cmp.Or(o.GapBytes, 256<<10)
	o.Gather = cmp.Or(o.Gather, time.Millisecond)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.Stall = cmp.Or(o.Stall, time.Second)
	o.HedgeAfter = cmp.Or(o.HedgeAfter, 200*time.Millisecond)
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Validate reports options that make no sense.
func (o *Options) Validate() error {
	switch {
	case o.Bucket == nil || o.Catalog == nil:
		return fmt.Errorf("fetch options: there is no Bucket, or no Catalog")
	case o.Connections < 1:
		return fmt.Errorf("fetch options: Connections %d is less than 1", o.Connections)
	case o.InFlightBytes < 1 || o.RangeBytes < 1 || o.GapBytes < 0:
		return fmt.Errorf("fetch options: InFlightBytes %d, RangeBytes %d or GapBytes %d is too small", o.InFlightBytes, o.RangeBytes, o.GapBytes)
	case o.Gather < 0 || o.Timeout <= 0 || o.Stall <= 0 || o.HedgeAfter <= 0:
		return fmt.Errorf("fetch options: Gather %v, Timeout %v, Stall %v or HedgeAfter %v is too short", o.Gather, o.Timeout, o.Stall, o.HedgeAfter)
	}
	return nil
}
