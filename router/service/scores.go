package service

import (
	"math"

	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/route"
)

// Score is what the policy made of one rank.
type Score struct {
	Rank     int32 `json:"rank"`
	Eligible bool  `json:"eligible"`
	// Total is what was compared: seconds for cost, tokens for load and kv-aware, blocks for
	// serve-kv-aware. Null if the rank was not eligible.
	Total          *float64 `json:"total"`
	MatchTokens    int32    `json:"match_tokens"`
	LoadTokens     float64  `json:"load_tokens"`
	ActiveRequests int      `json:"active_requests"`
	// The parts of Total; only cost has them.
	QueueS   float64 `json:"queue_s"`
	LoadS    float64 `json:"load_s"`
	PrefillS float64 `json:"prefill_s"`
	DecodeS  float64 `json:"decode_s"`
	BalanceS float64 `json:"balance_s"`
	Prefix   Match   `json:"prefix"`
}

// Match is how many tokens of a prompt a rank has, by tier.
type Match struct {
	GPU    int32 `json:"gpu"`
	Disk   int32 `json:"disk"`
	Object int32 `json:"object"`
	// Usable is the longest prefix whose every block is on some tier, LoadDisk and LoadObject those of
	// it that have to be loaded.
	Usable     int32 `json:"usable"`
	LoadDisk   int32 `json:"load_disk"`
	LoadObject int32 `json:"load_object"`
}

func matchOf(m *policy.Match) Match {
	return Match{GPU: m.GPU, Disk: m.Disk, Object: m.Object, Usable: m.Usable, LoadDisk: m.LoadDisk, LoadObject: m.LoadObject}
}

// scores are those of an explained decision.
func scores(d *route.Decision) []Score {
	var list []Score
	for i := range d.Scores {
		e := &d.Scores[i]
		s := Score{
			Rank: e.Rank, Eligible: e.Eligible, MatchTokens: e.MatchTokens, LoadTokens: e.LoadTokens, ActiveRequests: e.ActiveRequests,
			QueueS: finite(e.QueueSeconds), LoadS: finite(e.LoadSeconds), PrefillS: finite(e.PrefillSeconds),
			DecodeS: finite(e.DecodeSeconds), BalanceS: finite(e.BalanceSeconds),
		}
		if e.Eligible {
			total := finite(e.Total)
			s.Total = &total
		}
		if i < len(d.Matches) {
			s.Prefix = matchOf(&d.Matches[i])
		}
		list = append(list, s)
	}
	return list
}

// finite is v as JSON can have it.
func finite(v float64) float64 {
	switch {
	case math.IsNaN(v):
		return 0
	case math.IsInf(v, 0):
		return math.Copysign(math.MaxFloat64, v)
	}
	return v
}
