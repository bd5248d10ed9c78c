package daemon

import (
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector/server"
)

// The ranks of an engine that have registered are on this node; the others are on other nodes.
func TestRanksHereAreThoseThatHaveRegistered(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	m := residencyManifest()
	here := func(engine string) []int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.ranksHere(engine, m.Digest())
	}
	s, err := b.OpenScheduler(t.Context(), server.Peer{Engine: "e"}, m)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	open := func(engine string, rank int) *workerSession {
		w, err := b.OpenWorker(t.Context(), server.Peer{Engine: engine}, m, rank)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		return w.(*workerSession)
	}
	w, other := open("e", 1), open("another", 0)
	if got := here("e"); len(got) != 0 {
		t.Errorf("ranks %v that have not registered", got)
	}
	w.setMemory(true, false)
	other.setMemory(true, false)
	if got, want := here("e"), []int{1}; !slices.Equal(got, want) {
		t.Errorf("ranks %v, want %v", got, want)
	}
	w.loseMemory(false)
	if got := here("e"); len(got) != 0 {
		t.Errorf("ranks %v, one without memory", got)
	}
}
