// Package sources counts prompt tokens by where they come from.
package sources

import "github.com/kvconn/kvconn/connector"

// Stats counts the tokens of requests at their first match that the engine did not have itself. Their sum, and
// what the engine had, are all tokens of prompts. The tags are those of package counters.
type Stats struct {
	HostTokens     uint64 `json:"host_tokens" metric:"prompt_tokens_total" label:"source=host"`
	DiskTokens     uint64 `json:"disk_tokens" metric:"prompt_tokens_total" label:"source=disk"`
	ObjectTokens   uint64 `json:"object_tokens" metric:"prompt_tokens_total" label:"source=object"`
	ComputedTokens uint64 `json:"computed_tokens" metric:"prompt_tokens_total" label:"source=computed"`
}

// Add counts a request: the engine lacks queried tokens and is offered the first of them, which lie in tiers,
// the fastest first. Where tiers have more than what is offered, the slowest give way; where they have less, the rest
// counts as the first tier's.
func (s *Stats) Add(queried, offered int, tiers *[connector.MaxTiers]connector.TierTokens) {
	s.ComputedTokens += uint64(queried - offered)
	for i := range tiers {
		n := min(tiers[i].Tokens, offered)
		*s.of(tiers[i].Tier) += uint64(n)
		offered -= n
	}
	*s.of(tiers[0].Tier) += uint64(offered)
}

// of is the count of a tier. Where there is no tier but one, it is a disk.
func (s *Stats) of(tier string) *uint64 {
	switch tier {
	case "host":
		return &s.HostTokens
	case "object":
		return &s.ObjectTokens
	}
	return &s.DiskTokens
}
