package fetch

import (
	"cmp"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

// Stats is what was read since the start. The tags are those of package counters.
type Stats struct {
	// Records were read and verified; ReadBytes are those of their payloads.
	Records   uint64 `json:"records" metric:"fetched_records_total" help:"Records read from the bucket and verified."`
	ReadBytes uint64 `json:"payload_bytes" metric:"fetched_bytes_total" help:"Bytes of payloads read from the bucket and verified."`
	// Ranges are stretches of objects that were asked for; Gaps are bytes in them that nobody wanted.
	Ranges   uint64 `json:"ranges" metric:"ranges_total" help:"Ranges of objects that loads asked for: one request each if nothing fails."`
	GapBytes uint64 `json:"gap_bytes" metric:"gap_bytes_total" help:"Bytes that were read because they lay between requested records."`
	// Hedges are second requests because an answer was late, HedgesWon those whose answer came first.
	Hedges    uint64 `json:"hedges" metric:"hedges_total" help:"Second requests that were sent because the first was slow to answer."`
	HedgesWon uint64 `json:"hedges_won" metric:"hedges_won_total" help:"Second requests that were answered before the first."`
	// Stalls are bodies that stood still, Resumed requests for the rest of a range.
	Stalls  uint64 `json:"stalls" metric:"stalls_total" help:"Answers that were aborted because no byte came for too long."`
	Resumed uint64 `json:"resumed" metric:"resumed_total" help:"Requests for the rest of a range whose answer had broken off."`
	// Reads that failed, by cause.
	Failed map[string]uint64 `json:"failed" metric:"failed_reads_total" label:"cause" help:"Records that were requested from the bucket and not delivered."`
	// Lost are reports of objects, by cause: one for each read that came upon it.
	Lost map[string]uint64 `json:"lost" metric:"lost_objects_total" label:"cause" help:"Reads that found an object missing or damaged."`
	// Unsealed are records that were passed over because they are not sealed, or with a key that this node does not have.
	Unsealed uint64 `json:"unsealed" metric:"unsealed_total" help:"Records of the bucket that were refused: they have no seal, or the key file lacks their key."`
}

// counts are the counters of a fetcher.
type counts struct {
	records, bytes, ranges, gaps, hedges, won, stalls, resumed, unsealed atomic.Uint64

	mu           sync.Mutex
	failed, lost map[string]uint64
}

// Stats returns the counters.
func (f *Fetcher) Stats() Stats {
	c := &f.counts
	s := Stats{
		Records: c.records.Load(), ReadBytes: c.bytes.Load(), Ranges: c.ranges.Load(), GapBytes: c.gaps.Load(),
		Hedges: c.hedges.Load(), HedgesWon: c.won.Load(), Stalls: c.stalls.Load(), Resumed: c.resumed.Load(), Unsealed: c.unsealed.Load(),
		Failed: make(map[string]uint64), Lost: make(map[string]uint64),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for cause, n := range c.failed {
		s.Failed[cause] = n
	}
	for cause, n := range c.lost {
		s.Lost[cause] = n
	}
	return s
}

// ended counts the result of an op.
func (c *counts) ended(op *store.ReadOp) {
	if op.Err == nil {
		c.records.Add(1)
		c.bytes.Add(uint64(len(op.Payload)))
		return
	}
	cause := "io"
	for _, k := range []struct {
		err  error
		name string
	}{
		{store.ErrMismatch, "mismatch"}, {store.ErrUnreadable, "unreadable"}, {store.ErrGone, "gone"}, {store.ErrCorrupt, "corrupt"},
		{store.ErrTimeout, "timeout"}, {store.ErrInvalid, "invalid"}, {store.ErrClosed, "closed"},
	} {
		if errors.Is(op.Err, k.err) {
			cause = k.name
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = make(map[string]uint64)
	}
	c.failed[cause]++
}

// logEvery is how often objects that are lost are logged: an emptied bucket has many.
const logEvery = time.Minute

// lose takes an object out of the catalog.
func (f *Fetcher) lose(o format.ObjectID, why format.Cause, err error) {
	f.o.Catalog.Lost(o, why)
	c := &f.counts
	c.mu.Lock()
	if c.lost == nil {
		c.lost = make(map[string]uint64)
	}
	c.lost[why.String()]++
	c.mu.Unlock()
	f.mu.Lock()
	now := time.Now()
	tell := f.logged.IsZero() || now.Sub(f.logged) >= logEvery
	if tell {
		f.logged = now
	}
	f.mu.Unlock()
	if tell {
		f.o.Logger.Warn("an object of the bucket cannot be read: its records are misses from now on", slog.String("object", format.DataName(o).String()),
			slog.Any("error", err),
			slog.String("remedy", cmp.Or(bucket.Remedy(err), "none for one; if there are more, look for rules that delete objects of this prefix, and run kvconnd fsck")))
	}
}
