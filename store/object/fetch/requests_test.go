package fetch

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/store/object/bucket"
	objects "github.com/kvconn/kvconn/store/object/format"
)

// At most 1.1 GET for each run that is fetched, also where one in fifty answers breaks off, is an error or is
// late; and a run is as long as it may be where that much is wanted.
func TestRequestsARun(t *testing.T) {
	const perObject, payloadBytes, rangeBytes = 64, 16 << 10, 256 << 10
	inBubble(t, func(_ *bucket.Options, o *Options) { o.RangeBytes = rangeBytes }, func(t *testing.T, b *bench) {
		var records []*written
		for range 24 {
			records = append(records, b.put(perObject, payloadBytes)...)
		}
		for _, script := range [][]s3proxy.Clause{nil, {
			{On: s3proxy.Get, Every: 50, Do: s3proxy.Effect{Status: 503, Code: "SlowDown"}},
			{On: s3proxy.Get, After: 10, Every: 50, Do: s3proxy.Effect{Cut: 100_000}},
			{On: s3proxy.Get, After: 20, Every: 50, Do: s3proxy.Effect{Delay: 2 * time.Second}},
		}} {
			b.proxy.Play(script...)
			before, runs := b.bucket.Stats().Requests["get"], b.Stats().Ranges
			var calls sync.WaitGroup
			for part := range slices.Chunk(records, 4*perObject) { // loads
				for batch := range slices.Chunk(part, 16) {
					calls.Go(func() {
						ops := opsOf(batch...)
						b.read(t.Context(), ops...)
						want(t, nil, ops...)
					})
				}
				calls.Wait()
			}
			gets := b.bucket.Stats().Requests["get"] - before
			runs = b.Stats().Ranges - runs
			t.Logf("%d GETs for %d runs", gets, runs)
			if float64(gets) > 1.1*float64(runs) {
				t.Errorf("%d GETs for %d runs", gets, runs)
			}
			if most := len(records) / perObject * (1 + perObject*int(objects.SlotBytes(payloadBytes))/rangeBytes); runs > uint64(most) {
				t.Errorf("%d runs, want %d at most", runs, most)
			}
		}
	})
}
