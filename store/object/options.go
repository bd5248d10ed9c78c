package object

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

// Options configure a [Tier]. The zero value of a field means its default.
type Options struct {
	// Bucket says which bucket it is, and how it is spoken to.
	Bucket bucket.Options
	// Ring has the keys of the key file. With one, only what is sealed is accepted, and all is sealed that
	// is written. Default: none.
	Ring *seal.Ring
	// Name is the level's. Default "object".
	Name string
	// Node names this node for people, in the lease. Default: the host's name.
	Node string
	// MaxBytes bounds what all nodes together keep in the bucket: at 90% of it the least recently used
	// records go, at 100% uploads wait. Default 1 TB: $23 a month. NoBytes is no bound.
	MaxBytes int64
	// MaxAge is how long records go without a use before they are removed. Default 30 days. NoAge is no
	// bound.
	MaxAge time.Duration
	// IndexBytes bounds the memory of what is known of the bucket. Default 1 GiB: about 29 million records.
	IndexBytes int64
	// EventBytes bounds the memory of events that subscribers have yet to read. Default 64 MiB.
	EventBytes int64
	// ObjectBytes is how large data objects get, unless one record is larger. Default 32 MiB: larger ones
	// save hardly a request, and are lost as a whole.
	ObjectBytes int64
	// WriteBytes bounds the payloads of writes under way. Default 256 MiB: 4 uploads at one time, with
	// as many that wait for their list.
	WriteBytes int64
	// Writes is how many data objects are sent at one time. Default 4.
	Writes int
	// PutTimeout bounds what one object may take until it is written, with all attempts. Default 2 min.
	PutTimeout time.Duration
	// ListPause is how long to wait after a list of this node's objects before the next, and 8 ms more for each
	// other node that writes. Default 2 s: it bounds what lists cost, and delays the hits of other nodes.
	ListPause time.Duration
	// Connections is how many transfers there are at one time, ReadInFlightBytes how much is asked of the
	// bucket and has not come. Defaults 32 and 64 MiB: see [fetch.Options].
	Connections       int
	ReadInFlightBytes int64
	// Compress has payloads compressed where that is measured to pay. Default off: at 1 GB/s it costs the
	// processor more than most links gain.
	Compress bool
	// PollMax is how seldom a node looks for news of others while no engine asks for anything. Default
	// 30 s: see [follow.Options].
	PollMax time.Duration
	// MaxStale is how old the last look may be while records are offered. Default 5 min, a third of the
	// grace: what others remove meanwhile can still be read.
	MaxStale time.Duration
	// Grace is the time from the removal of records to the deletion of their bytes. Default 15 min. All
	// nodes of a bucket must have the same.
	Grace time.Duration
	// LeaseMax bounds a lease. Default 5 min: see Grace.
	LeaseMax time.Duration
	// MaxLeases bounds the leases in force: past it nothing is found. Default 32,768.
	MaxLeases int
	// RetryMin and RetryMax bound the pauses between attempts to reach the bucket at first. Defaults 1 s and
	// 60 s.
	RetryMin, RetryMax time.Duration
	// CloseTimeout bounds what Close waits for writes that were accepted. Default 10 s.
	CloseTimeout time.Duration
	// Emptied is called when the bucket turns out to be another one than before: what the disk has may be offered
	// to it again. It must not wait. Default: nothing.
	Emptied func()
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger

	// now is the clock of the bucket in place of its answers, for tests.
	now func() time.Time
}

// NoBytes and NoAge stand for no bound.
const (
	NoBytes = math.MaxInt64
	NoAge   = time.Duration(math.MaxInt64)
)

// EnsureDefaults fills in every field that is zero.
func (o *Options) EnsureDefaults() {
	o.Name = cmp.Or(o.Name, "object")
	if o.Node == "" {
		o.Node, _ = os.Hostname()
	}
	o.MaxBytes = cmp.Or(o.MaxBytes, 1e12)
	o.MaxAge = cmp.Or(o.MaxAge, 30*24*time.Hour)
	o.IndexBytes = cmp.Or(o.IndexBytes, 1<<30)
	o.EventBytes = cmp.Or(o.EventBytes, 64<<20)
	o.ObjectBytes = cmp.Or(o.ObjectBytes, 32<<20)
	o.WriteBytes = cmp.Or(o.WriteBytes, 256<<20)
	o.Writes = cmp.Or(o.Writes, 4)
	o.PutTimeout = cmp.Or(o.PutTimeout, 2*time.Minute)
	o.ListPause = cmp.Or(o.ListPause, 2*time.Second)
	o.Connections = cmp.Or(o.Connections, 32)
	o.ReadInFlightBytes = cmp.Or(o.ReadInFlightBytes, 64<<20)
	o.PollMax = cmp.Or(o.PollMax, 30*time.Second)
	o.MaxStale = cmp.Or(o.MaxStale, 5*time.Minute)
	o.Grace = cmp.Or(o.Grace, 15*time.Minute)
	o.LeaseMax = cmp.Or(o.LeaseMax, 5*time.Minute)
	o.MaxLeases = cmp.Or(o.MaxLeases, 32_768)
	o.RetryMin = cmp.Or(o.RetryMin, time.Second)
	o.RetryMax = cmp.Or(o.RetryMax, time.Minute)
	o.CloseTimeout = cmp.Or(o.CloseTimeout, 10*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Bucket.Logger = cmp.Or(o.Bucket.Logger, o.Logger)
	o.Bucket.Connections = cmp.Or(o.Bucket.Connections, o.Connections)
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.MaxBytes < o.ObjectBytes:
		return fmt.Errorf("object tier options: MaxBytes %d: at least ObjectBytes, %d", o.MaxBytes, o.ObjectBytes)
	case o.MaxAge < time.Hour:
		return fmt.Errorf("object tier options: MaxAge %v: at least an hour", o.MaxAge)
	case o.ObjectBytes < 2*format.Unit || o.ObjectBytes > store.MaxPayloadBytes:
		return fmt.Errorf("object tier options: ObjectBytes %d: from %d to %d", o.ObjectBytes, 2*format.Unit, store.MaxPayloadBytes)
	case o.WriteBytes < o.ObjectBytes:
		return fmt.Errorf("object tier options: WriteBytes %d: at least ObjectBytes, %d", o.WriteBytes, o.ObjectBytes)
	case o.Writes < 1 || o.Writes > 1024:
		return fmt.Errorf("object tier options: Writes %d: from 1 to 1024", o.Writes)
	case o.MaxStale > o.Grace/3:
		return fmt.Errorf("object tier options: MaxStale %v: at most a third of Grace, %v", o.MaxStale, o.Grace)
	case o.LeaseMax > o.Grace/2:
		return fmt.Errorf("object tier options: LeaseMax %v: at most half of Grace, %v", o.LeaseMax, o.Grace)
	case o.RetryMax < o.RetryMin || o.RetryMin < 0:
		return fmt.Errorf("object tier options: RetryMax %v is less than RetryMin, %v", o.RetryMax, o.RetryMin)
	case o.MaxLeases < 1:
		return fmt.Errorf("object tier options: MaxLeases %d: at least 1", o.MaxLeases)
	case o.PutTimeout < 0 || o.ListPause < 0 || o.PollMax < 0 || o.CloseTimeout < 0:
		return fmt.Errorf("object tier options: a time is negative")
	}
	return nil
}
