package connector

// Why says why a match offers nothing, in a word of a few.
type Why string

// Reasons.
const (
	// WhyNotReady: a rank of the engine cannot load.
	WhyNotReady Why = "not_ready"
	// WhyOptedOut: the request does not want to load.
	WhyOptedOut Why = "opted_out"
	// WhyFailed: an earlier load of the request failed.
	WhyFailed Why = "load_failed"
	// WhyNothingLeft: no full block is left that the engine does not hold, or it holds a part of one.
	WhyNothingLeft Why = "nothing_left"
	// WhyDoubted: loads of ranks on other nodes failed several times in a row.
	WhyDoubted Why = "doubted"
	// WhyNotStored: no tier has what comes next, or less of it than the smallest offer.
	WhyNotStored Why = "not_stored"
	// WhySlow: loading would take longer than computing.
	WhySlow Why = "slower_than_prefill"
	// WhyLate: the blocks were not in the host tier in time, which an engine needs that cannot report a failed load.
	WhyLate Why = "not_staged_in_time"
)

// WhyNone is the reason where a tier is not asked.
func WhyNone(optedOut, failed bool) Why {
	switch {
	case optedOut:
		return WhyOptedOut
	case failed:
		return WhyFailed
	}
	return WhyNothingLeft
}

// WhyMissed is the reason where the tiers were asked, and refused tokens are stored but not worth loading.
func WhyMissed(refused int) Why {
	if refused > 0 {
		return WhySlow
	}
	return WhyNotStored
}
