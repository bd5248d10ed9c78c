package objectbench

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/format"
)

// Options say what [Run] measures, and where. The zero value of a field means its default.
type Options struct {
	// URL, Endpoint, Style, Region and CAFile are those of [bucket.Options]. Without a URL a server in
	// memory is started, and the others must be empty. In a bucket the bench works below a prefix of its
	// own, which it empties at its end.
	URL, Endpoint, Style, Region, CAFile string
	// ServerCommand starts the process of the server in memory, which must run [Serve]. Without it the
	// server runs in this process, and processor times have those of the server in them.
	ServerCommand []string
	// LinkBytesPerS limits what goes through all connections of the server in memory in a second, in each
	// direction, as a network does. Default 0: no limit, so that the processors are the limit.
	LinkBytesPerS int64
	// BlockBytes is the payload of a record. Default 2 MiB.
	BlockBytes int
	// TotalBytes of payloads are written and read in a round. Default 256 MiB: about a second.
	TotalBytes int64
	// Rounds of raw and measured requests alternate; medians count. Default 3.
	Rounds int
	// Connections are those of fetching. Default 8: as many ranges of 8 MiB as the tier has in flight.
	Connections int
	// Uploads is how many objects are written at one time. Default 4, as in the tier.
	Uploads int
	// Records are in the lists that a node joins by, and in the indexes that look-ups are made in.
	// Default 1 million.
	Records int
	// Progress, if not nil, is called with what is measured next.
	Progress func(step string)
}

const (
	chainBlocks = 8192
	// objectBytes are the slots of an object at most: the uploader's default.
	objectBytes = 32 << 20
	// rangeBytes are those of a range of fetching: the fetcher's default.
	rangeBytes = 8 << 20
	// maxBlockBytes leaves room for a range that ends with a block of that size in one buffer.
	maxBlockBytes = 16 << 20
)

// EnsureDefaults fills in every field that is zero.
func (o *Options) EnsureDefaults() {
	o.BlockBytes = cmp.Or(o.BlockBytes, 2<<20)
	o.TotalBytes = cmp.Or(o.TotalBytes, 256<<20)
	o.Rounds = cmp.Or(o.Rounds, 3)
	o.Connections = cmp.Or(o.Connections, 8)
	o.Uploads = cmp.Or(o.Uploads, 4)
	o.Records = cmp.Or(o.Records, 1_000_000)
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
}

// Validate reports what cannot be measured. Options of the bucket are validated when it is opened.
func (o *Options) Validate() error {
	switch {
	case o.URL == "" && (o.Endpoint != "" || o.Style != "" || o.Region != "" || o.CAFile != ""):
		return errors.New("bench object: an endpoint, style, region or CA needs the URL of a bucket")
	case o.LinkBytesPerS != 0 && o.URL != "":
		return errors.New("bench object: a bucket has a network of its own, and the limit is for the server in memory")
	case o.LinkBytesPerS < 0:
		return fmt.Errorf("bench object: a limit of %d bytes a second is below 0", o.LinkBytesPerS)
	case o.BlockBytes < store.MinPayloadBytes || o.BlockBytes > maxBlockBytes || o.BlockBytes%2 != 0:
		return fmt.Errorf("bench object: blocks of %d bytes: want an even number from %d to %d", o.BlockBytes, store.MinPayloadBytes, maxBlockBytes)
	case o.Connections < 1 || o.Connections > 256 || o.Uploads < 1 || o.Uploads > 256:
		return fmt.Errorf("bench object: %d connections and %d uploads: want 1 to 256", o.Connections, o.Uploads)
	case o.TotalBytes < int64(o.Uploads)*int64(o.BlockBytes):
		return fmt.Errorf("bench object: %d bytes in all: want a block of %d for each of %d uploads at least", o.TotalBytes, o.BlockBytes, o.Uploads)
	case o.Rounds < 1:
		return fmt.Errorf("bench object: %d rounds: want at least 1", o.Rounds)
	case o.Records < chainBlocks || o.Records > 1<<26:
		return fmt.Errorf("bench object: %d records: want %d, a chain, to %d", o.Records, chainBlocks, 1<<26)
	}
	return nil
}

// slotBytes is the slot of a record that is not compressed.
func (o *Options) slotBytes() int { return int(format.SlotBytes(o.BlockBytes)) }

// perObject is how many records an object has, and objects how many objects of that size a round has: one
// for each upload at least.
func (o *Options) perObject() int {
	blocks := int(o.TotalBytes / int64(o.BlockBytes))
	return max(1, min(objectBytes/o.slotBytes(), blocks/o.Uploads))
}

func (o *Options) objects() int {
	return int(o.TotalBytes / int64(o.BlockBytes) / int64(o.perObject()))
}

// roundBytes are the payloads of a round.
func (o *Options) roundBytes() int64 {
	return int64(o.objects()) * int64(o.perObject()) * int64(o.BlockBytes)
}
