package inflight

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// A burst of long prompts leaves little behind.
func TestFinishedRequestsKeepLittleMemory(t *testing.T) {
	tr, err := NewTracker(Options{AssumeKVReuse: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.AddRank(0); err != nil {
		t.Fatal(err)
	}
	keys := make([]connector.Key, 1000)
	const requests = 1500
	for id := range uint64(requests) {
		if err := tr.Add(Request{ID: id, PromptTokens: 16 * len(keys), Keys: keys}); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint64(requests) {
		tr.Finish(id)
	}
	room := 0
	for _, e := range tr.free {
		room += cap(e.keys)
	}
	if room != tr.freeKeys || room > maxFreeKeys {
		t.Errorf("room for %d keys is kept, counted %d", room, tr.freeKeys)
	}
	for id := range uint64(requests) {
		if err := tr.Add(Request{ID: id, PromptTokens: 16}); err != nil {
			t.Fatal(err)
		}
	}
	if tr.freeKeys != 0 {
		t.Errorf("%d keys counted of no entries", tr.freeKeys)
	}
}
