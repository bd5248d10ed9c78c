package daemon

import (
	"log/slog"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// hungWrites is a tier whose writes end when the test says so.
type hungWrites struct {
	*tiertest.Memory
	wrote   chan struct{}
	release chan struct{}
}

func (h *hungWrites) Write(ops []*store.WriteOp, done func(*store.WriteOp)) (int, error) {
	go func() {
		h.wrote <- struct{}{}
		<-h.release
		for _, op := range ops {
			op.Err = store.ErrIO
			done(op)
		}
	}()
	return len(ops), nil
}

// What is read for a request that waits is written to the first tier. The end of a session waits
// for that no more than for reads: an engine that starts again needs the rank's place.
func TestSessionEndsWhileWhatWasReadForItIsWritten(t *testing.T) {
	first := &hungWrites{tiertest.NewMemory(tiertest.Options{Name: "disk"}), make(chan struct{}, 16), make(chan struct{})}
	slow := tiertest.NewMemory(tiertest.Options{Name: "object"})
	a, err := host.New(host.Options{Bytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	o := &Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	o.EnsureDefaults()
	b := newBackend(o, store.NewChain(first, slow), a)
	m := residencyManifest()
	s, w := openEngine(t, b, m)
	records, tokens := promptRecords(m, 3)
	storetest.Save(t, slow, records...)
	offer, err := s.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: tokens, PromptTokens: len(tokens)})
	if err != nil || offer.Tokens == 0 {
		t.Fatal(offer, err)
	}
	<-first.wrote
	s.Close()
	if n := len(b.schedulers); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	close(first.release)
	w.Close()
	wait.For(t, "all memory is free", func() bool { return a.Stats().UsedBytes == 0 })
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
