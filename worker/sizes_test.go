package worker

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// tryRegister registers memory with a layout, which may be refused.
func tryRegister(t *testing.T, w *Worker, m *engineMemory, l connector.Layout) error {
	t.Helper()
	page, f, err := fence.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = page.Close() })
	_, err = w.Register(t.Context(), &l, m.descriptor(), f)
	return err
}

// Two engines of other block sizes registered before there was a record, and both were taken:
// the saves of one failed from the first save of the other on, and all its loads.
func TestOfTwoBlockSizesTheFirstIsServed(t *testing.T) {
	s := openStore(t)
	first, second := newWorker(t, s, nil), newWorker(t, s, nil)
	m := newEngineMemory(t)
	other := testLayout()
	other.Groups[0].Blocks /= 2
	other.Groups[0].Runs[0].Bytes *= 2
	other.Groups[0].Runs[0].BlockStride *= 2

	register(t, first, m)
	err := tryRegister(t, second, m, other)
	if !errors.Is(err, store.ErrPayloadSize) || !errors.Is(err, connector.ErrBadRequest) {
		t.Fatalf("%v, want a refusal for the size", err)
	}
	for _, size := range []string{"6000", "12000"} {
		if !strings.Contains(err.Error(), size) {
			t.Errorf("%q does not name %s bytes", err, size)
		}
	}
	register(t, second, m) // the same size is as good as ever
	m.fill(0, 7)
	mustSave(t, first, transfer(0, 0))
	if err := second.Unregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tryRegister(t, second, m, other); !errors.Is(err, store.ErrPayloadSize) {
		t.Errorf("%v, though there is a record", err)
	}
}

// The size is free when the engine has gone without a save, whichever way it went.
func TestBlockSizeIsFreeWhenItsEngineHasGone(t *testing.T) {
	s := openStore(t)
	m := newEngineMemory(t)
	other := testLayout()
	other.Groups[0].Blocks /= 2
	other.Groups[0].Runs[0].Bytes *= 2
	other.Groups[0].Runs[0].BlockStride *= 2
	bad := testLayout()
	bad.Groups[0].Blocks *= 1000 // does not fit its region

	for what, leave := range map[string]func(w *Worker){
		"closed":       (*Worker).Close,
		"unregistered": func(w *Worker) { _ = w.Unregister(t.Context()) },
		"again":        func(w *Worker) { _ = tryRegister(t, w, m, bad) },
	} {
		first, second := newWorker(t, s, nil), newWorker(t, s, nil)
		register(t, first, m)
		leave(first)
		if err := tryRegister(t, second, m, other); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		// Its own memory in another layout takes the place of what it had.
		register(t, second, m)
		if err := second.Unregister(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// holds counts what is held of each shard; the last one is refused.
type holds struct {
	slowStore
	held, last map[connector.Shard]int
}

func (h *holds) HoldPayload(_ connector.NamespaceDigest, shard connector.Shard, _ int) error {
	if h.last[shard] > 0 {
		return errSizes
	}
	h.held[shard]++
	return nil
}

func (h *holds) ReleasePayload(_ connector.NamespaceDigest, shard connector.Shard) { h.held[shard]-- }

// Of an engine of several groups one may be refused: those before it are not held any more.
func TestARefusedRegistrationHoldsNoSize(t *testing.T) {
	manifest := testManifest()
	manifest.Groups = append(manifest.Groups, manifest.Groups[0])
	second, _ := manifest.Shard(0, 1)
	h := &holds{held: make(map[connector.Shard]int), last: map[connector.Shard]int{second: 1}}
	w := newWorker(t, h, func(o *Options, _ *host.AccountOptions) { o.Manifest = manifest })
	l := testLayout()
	l.Groups = append(l.Groups, l.Groups[0])
	if err := tryRegister(t, w, newEngineMemory(t), l); !errors.Is(err, errSizes) {
		t.Fatalf("%v, want a refusal for the second group", err)
	}
	for shard, n := range h.held {
		if n != 0 {
			t.Errorf("shard %d is held %d times", shard, n)
		}
	}
	if len(h.held) != 1 {
		t.Errorf("%d shards were held, want one before the other was refused", len(h.held))
	}
}
