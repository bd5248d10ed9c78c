package upload

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Policy says which records of a namespace are uploaded.
type Policy uint8

// The policies.
const (
	// All uploads every record.
	All Policy = iota
	// SecondUse uploads a record when a look-up finds it after its save, or it is saved again.
	SecondUse
	// Off uploads none.
	Off
)

// Options configure an [Uploader]. The zero value of a field means its default.
type Options struct {
	// Policy says what is uploaded of a namespace. Default: [All].
	Policy func(*connector.Manifest) Policy
	// ObjectBytes are the slots of an object at most, header and payload of each record, unless a single
	// one is larger: what the target packs into one. Default 32 MiB: larger ones save hardly a request, and
	// take as much memory.
	ObjectBytes int64
	// Age is how long a record waits for others to share its object. Default 10 s: less makes small
	// objects, and more delays the hits of other nodes.
	Age time.Duration
	// QueueBytes are what the records in the queue take in the first tier at most. Default 256 GiB:
	// 131,072 records of 2 MiB, 14 MB of memory.
	QueueBytes int64
	// QueueRecords bounds the records in the queue. Default 2^20.
	QueueRecords int
	// Uploads is how many objects are in memory at one time. Default 4: 128 MiB.
	Uploads int
	// ReadTimeout bounds the reading of 8 MiB from the first tier. Default 10 s.
	ReadTimeout time.Duration
	// Throttled reports whether an error of the target says that the bucket wants fewer requests.
	// Default: none does.
	Throttled func(error) bool
	// Logger receives what an operator should know. Default: nothing.
	Logger *slog.Logger
}

const (
	// headerBytes is the header of a record, maxObjectRecords how many records an object has at most:
	// the format's.
	headerBytes      = 4096
	maxObjectRecords = 8192
)

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.Policy == nil {
		o.Policy = func(*connector.Manifest) Policy { return All }
	}
	o.ObjectBytes = cmp.Or(o.ObjectBytes, 32<<20)
	o.Age = cmp.Or(o.Age, 10*time.Second)
	o.QueueBytes = cmp.Or(o.QueueBytes, 256<<30)
	o.QueueRecords = cmp.Or(o.QueueRecords, 1<<20)
	o.Uploads = cmp.Or(o.Uploads, 4)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 10*time.Second)
	if o.Throttled == nil {
		o.Throttled = func(error) bool { return false }
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.ObjectBytes < store.BufferAlign || o.ObjectBytes > store.MaxPayloadBytes || o.ObjectBytes%store.BufferAlign != 0:
		return fmt.Errorf("upload options: ObjectBytes %d: a multiple of %d up to %d", o.ObjectBytes, store.BufferAlign, store.MaxPayloadBytes)
	case o.Age < tick || o.Age > maxAge:
		return fmt.Errorf("upload options: Age %v: from %v to %v", o.Age, tick, maxAge)
	case o.QueueBytes < 0:
		return fmt.Errorf("upload options: QueueBytes %d is negative", o.QueueBytes)
	case o.QueueRecords < 1 || o.QueueRecords > maxQueueRecords:
		return fmt.Errorf("upload options: QueueRecords %d: from 1 to %d", o.QueueRecords, maxQueueRecords)
	case o.Uploads < 1 || o.Uploads > 1024:
		return fmt.Errorf("upload options: Uploads %d: from 1 to 1024", o.Uploads)
	case o.ReadTimeout < 0:
		return fmt.Errorf("upload options: ReadTimeout %v is negative", o.ReadTimeout)
	}
	return nil
}
