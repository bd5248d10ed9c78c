package policy_test

import (
	"encoding/json"
	"testing"

	"github.com/kvconn/kvconn/router/policy"
)

// Every part of a score has its own name, and the total of a rank that cannot be chosen is null.
func TestScoresHaveTheirPartsInJSON(t *testing.T) {
	scores := []policy.Score{{
		Rank: 1, Eligible: true, Total: 2, MatchTokens: 3, LoadTokens: 4, ActiveRequests: 5,
		QueueSeconds: 6, LoadSeconds: 7, PrefillSeconds: 8, DelaySeconds: 19, MemorySeconds: 20, DecodeSeconds: 9, BalanceSeconds: 10,
		Prefix: policy.Match{GPU: 13, Disk: 14, Object: 15, Usable: 16, LoadDisk: 17, LoadObject: 18},
	}, {Rank: 11, Total: 12}}
	got, err := json.Marshal(scores)
	want := `[{"rank":1,"eligible":true,"match_tokens":3,"load_tokens":4,"active_requests":5,"queue_s":6,"load_s":7,"prefill_s":8,"delay_s":19,"memory_s":20,` +
		`"decode_s":9,"balance_s":10,"prefix":{"gpu":13,"disk":14,"object":15,"usable":16,"load_disk":17,"load_object":18},"total":2},` +
		`{"rank":11,"eligible":false,"match_tokens":0,"load_tokens":0,"active_requests":0,"queue_s":0,"load_s":0,"prefill_s":0,"delay_s":0,"memory_s":0,` +
		`"decode_s":0,"balance_s":0,"prefix":{"gpu":0,"disk":0,"object":0,"usable":0,"load_disk":0,"load_object":0},"total":null}]`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
}
