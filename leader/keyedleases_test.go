package leader

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// renewals notes which leases were renewed.
type renewals struct {
	*testIndex
	renewed map[store.LeaseID]int
}

func (x *renewals) Renew(id store.LeaseID, ttl time.Duration) bool {
	x.renewed[id]++
	return x.testIndex.Renew(id, ttl)
}

// Loads of a request may start one after the other without a new question. What was offered stays pinned until the last
// of them has ended, also if the time of the first is over by then.
func TestEveryKeyedLoadRenewsWhatItsRequestWasOffered(t *testing.T) {
	f := newKeyedFixture(t, nil)
	x := &renewals{f.x, make(map[store.LeaseID]int)}
	f.index = x
	f.store(0, 0, 1, 2, 5, 6)
	f.wantPresent("1110011", connector.PresentRequest{Request: "r"}, 7)
	if f.x.held() != 2 || len(x.renewed) != 0 {
		t.Fatalf("%d leases, %v renewed", f.x.held(), x.renewed)
	}
	for i, id := range []string{"a", "b", "c"} {
		f.Loading(&connector.KeyedMove{ID: id, Request: "r", Parts: []connector.KeyedPart{{Hashes: hashes(0, 1), Slots: []uint32{1}}}})
		if got := slices.Sorted(maps.Values(x.renewed)); !slices.Equal(got, []int{i + 1, i + 1}) {
			t.Errorf("load %s: the leases were renewed %v times", id, got)
		}
		if i > 0 { // the one before
			f.Loaded([]connector.FinishedLoad{{Request: string(rune('a' + i - 1))}})
		}
	}
	// A new question and its load renew what both were offered.
	f.wantPresent("1110011", connector.PresentRequest{Request: "r"}, 7)
	f.Loading(&connector.KeyedMove{ID: "d", Request: "r"})
	if got := slices.Sorted(maps.Values(x.renewed)); !slices.Equal(got, []int{1, 1, 4, 4}) {
		t.Errorf("the leases were renewed %v times", got)
	}
	f.Loaded([]connector.FinishedLoad{{Request: "c"}, {Request: "d"}})
	if n := f.x.held(); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}
