package daemon

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

func TestStatusAndMatchesDoNotWaitForEachOther(t *testing.T) {
	s, ns := residencyStore(t, 64<<20)
	keys := residencyChain(connector.Scope{}, 7, 64)
	residencySave(t, s, ns, keys, 0, 1)
	a, err := host.New(host.Options{Bytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	o := &Options{Dir: t.TempDir(), PrefillTokensPerS: 1000}
	o.Logger = slog.New(slog.DiscardHandler)
	o.EnsureDefaults()
	b := newBackend(o, store.NewChain(s), a)
	sched, err := b.OpenScheduler(t.Context(), server.Peer{Engine: "e"}, residencyManifest())
	if err != nil {
		t.Fatal(err)
	}
	var tokens []uint32
	for i := range 65 {
		tokens = append(tokens, 7, uint32(i), 0, 0)
	}
	done := make(chan string, 2)
	go func() {
		for range 5000 {
			b.status(time.Now())
		}
		done <- "status"
	}()
	go func() {
		offered := 0
		for i := range 2000 {
			r := fmt.Sprint(i)
			of, err := sched.Match(t.Context(), &connector.MatchRequest{Request: r, Tokens: tokens, PromptTokens: len(tokens)})
			if err != nil {
				t.Error(err)
			}
			offered += of.Tokens
			_, _ = sched.Step(t.Context(), &connector.StepRequest{Finished: []string{r}})
		}
		done <- fmt.Sprint("match offered ", offered)
	}()
	for range 2 {
		select {
		case w := <-done:
			t.Log(w)
		case <-time.After(4 * testWait):
			t.Fatal("status and matches wait for each other")
		}
	}
}
