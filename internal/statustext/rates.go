package statustext

import "github.com/kvconn/kvconn/internal/daemon"

// Rates are differences of counters over the time between two looks at a daemon.
type Rates struct {
	LoadBytesPerS, SaveBytesPerS        float64
	DiskReadBytesPerS                   float64
	QueriedTokensPerS, LoadTokensPerS   float64
	DroppedBlocksPerS, FailedBlocksPerS float64
	// Hit is the part of the queried tokens that was offered; -1 if none were.
	Hit float64
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
		LoadBytesPerS:     rate(a.Transfers.LoadedBytes, b.Transfers.LoadedBytes),
		SaveBytesPerS:     rate(a.Transfers.SavedBytes, b.Transfers.SavedBytes),
		DiskReadBytesPerS: rate(before.Store.ReadBytes, now.Store.ReadBytes),
		QueriedTokensPerS: rate(a.Requests.QueriedTokens, b.Requests.QueriedTokens),
		LoadTokensPerS:    rate(a.Requests.LoadTokens, b.Requests.LoadTokens),
		DroppedBlocksPerS: rate(a.Transfers.DroppedBlocks, b.Transfers.DroppedBlocks),
		FailedBlocksPerS:  rate(a.Transfers.FailedBlocks, b.Transfers.FailedBlocks),
		Hit:               -1,
	}
	if queried := delta(a.Requests.QueriedTokens, b.Requests.QueriedTokens); queried > 0 {
		r.Hit = delta(a.Requests.OfferedTokens, b.Requests.OfferedTokens) / queried
	}
	return r
}
