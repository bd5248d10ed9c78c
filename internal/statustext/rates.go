package statustext

import "github.com/kvconn/kvconn/internal/daemon"

// Rates are differences of counters over the time between two looks at a daemon.
type Rates struct {
	loadBytesPerS, saveBytesPerS        float64
	diskReadBytesPerS                   float64
	queriedTokensPerS, loadTokensPerS   float64
	droppedBlocksPerS, failedBlocksPerS float64
	// hit is the part of the queried tokens that was offered; -1 if none were.
	hit float64
}

// Since compares two looks; nil if they cannot be compared, because there was none before or
// the daemon was restarted. The time is the daemon's own, which a clock that jumps does not change.
func Since(before, now *daemon.Status) *Rates {
	if before == nil || before.Epoch != now.Epoch || now.UptimeS <= before.UptimeS {
		return nil
	}
	seconds := now.UptimeS - before.UptimeS
	a, b := &before.Totals, &now.Totals
	delta := func(before, now uint64) float64 { return float64(now - min(before, now)) } // never negative
	rate := func(before, now uint64) float64 { return delta(before, now) / seconds }
	r := &Rates{
		loadBytesPerS:     rate(a.Transfers.LoadedBytes, b.Transfers.LoadedBytes),
		saveBytesPerS:     rate(a.Transfers.SavedBytes, b.Transfers.SavedBytes),
		diskReadBytesPerS: rate(before.Store.ReadBytes, now.Store.ReadBytes),
		queriedTokensPerS: rate(a.Requests.QueriedTokens, b.Requests.QueriedTokens),
		loadTokensPerS:    rate(a.Requests.LoadTokens, b.Requests.LoadTokens),
		droppedBlocksPerS: rate(a.Transfers.DroppedBlocks, b.Transfers.DroppedBlocks),
		failedBlocksPerS:  rate(a.Transfers.FailedBlocks, b.Transfers.FailedBlocks),
		hit:               -1,
	}
	if queried := delta(a.Requests.QueriedTokens, b.Requests.QueriedTokens); queried > 0 {
		r.hit = delta(a.Requests.OfferedTokens, b.Requests.OfferedTokens) / queried
	}
	return r
}
