package sources

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
)

type tiers = [connector.MaxTiers]connector.TierTokens

func TestTokensAreCountedByTier(t *testing.T) {
	three := tiers{{Tier: "host", Tokens: 16}, {Tier: "disk", Tokens: 32}, {Tier: "object", Tokens: 64}}
	for _, tc := range []struct {
		name             string
		queried, offered int
		tiers            tiers
		want             Stats
	}{
		{"nothing", 100, 0, tiers{}, Stats{ComputedTokens: 100}},
		{"all of it", 120, 112, three, Stats{16, 32, 64, 8}},
		{"cut since: the slowest did not come in time", 120, 40, three, Stats{16, 24, 0, 80}},
		{"more than the tiers say", 200, 120, three, Stats{24, 32, 64, 80}},
		{"no tiers", 20, 16, tiers{}, Stats{0, 16, 0, 4}},
	} {
		var s Stats
		if s.Add(tc.queried, tc.offered, &tc.tiers); s != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, s, tc.want)
		}
	}
}
