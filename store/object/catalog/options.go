package catalog

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store/eventlog"
	"github.com/kvconn/kvconn/store/object/format"
)

// Options say how a [Catalog] is kept. Zero stands for the default.
type Options struct {
	// IndexBytes bounds the memory of the catalog: past it the records of the objects that were unused
	// for longest are left out, and found no more. The default, 1 GiB, is enough for 29 million records in objects of 16.
	IndexBytes int64
	// EventBytes bounds the memory of events that subscribers have yet to read, of all of them together.
	// The default is 64 MiB: 1.6 million events.
	EventBytes int64
	// Grace is how long the bytes of an object stay after it was removed. A lease holds for half of it at
	// most, so that it ends before the bytes go. The default is 15 minutes.
	Grace time.Duration
	// UseInterval is how often a use of one object is reported at most. The default is 6 hours: the age at
	// which objects go is counted in days.
	UseInterval time.Duration
	// Now is the clock of the bucket. There is no default: the clock of this machine may be wrong.
	Now func() format.Seconds
	// Readable reports whether this program can read records with these features and codec. Others are
	// known, and not offered. It must always answer the same, and at once. By default those with no features
	// can be read.
	Readable func(needs uint16, codec uint8) bool
}

// Validate reports what is out of range. Zero stands for the default.
func (o *Options) Validate() error {
	switch {
	case o.Now == nil:
		return errors.New("catalog options: Now is not set")
	case o.IndexBytes < 0 || o.IndexBytes > 0 && o.IndexBytes < MinIndexBytes:
		return fmt.Errorf("catalog options: IndexBytes %d: at least %d", o.IndexBytes, int64(MinIndexBytes))
	case o.EventBytes < 0 || o.EventBytes > 0 && o.EventBytes < eventlog.LeastBytes:
		return fmt.Errorf("catalog options: EventBytes %d: at least %d", o.EventBytes, int64(eventlog.LeastBytes))
	case o.Grace < 0:
		return fmt.Errorf("catalog options: Grace %v is negative", o.Grace)
	case o.UseInterval < 0:
		return fmt.Errorf("catalog options: UseInterval %v is negative", o.UseInterval)
	}
	return nil
}

// MinIndexBytes is the least bound of the catalog's memory.
const MinIndexBytes = 16 << 20

func (o *Options) complete() {
	if o.IndexBytes == 0 {
		o.IndexBytes = 1 << 30
	}
	if o.EventBytes == 0 {
		o.EventBytes = 64 << 20
	}
	if o.Grace == 0 {
		o.Grace = 15 * time.Minute
	}
	if o.UseInterval == 0 {
		o.UseInterval = 6 * time.Hour
	}
	if o.Readable == nil {
		o.Readable = func(needs uint16, codec uint8) bool { return needs == 0 && codec == 0 }
	}
}
