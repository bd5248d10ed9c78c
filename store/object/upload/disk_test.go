package upload

import (
	"log/slog"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

var _ Source = (*disk.Store)(nil)

// The disk tier is a source: what it has from before, and what comes, is read from it.
func TestTheDiskIsASource(t *testing.T) {
	s, err := disk.Open(t.Context(), disk.Options{Dir: t.TempDir(), MaxBytes: 256 << 20, MinFreeBytes: -1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	ns, err := s.OpenNamespace(manifests.Model("m"))
	if err != nil {
		t.Fatal(err)
	}
	save := func(from, to int) {
		for i := from; i < to; i++ {
			k := key(1, i)
			storetest.Save(t, s, &store.WriteOp{
				Record:  store.Record{ID: store.RecordID{Namespace: ns, Key: k}, Parent: key(1, i-1), Proof: proof(k)},
				Payload: payload(k),
			})
		}
	}
	save(0, 20)
	to := &target{t: t, have: make(map[store.RecordID]bool)}
	u, err := Start(s, to, Options{ObjectBytes: perObject * (headerBytes + store.BufferAlign), Age: tick})
	if err != nil {
		t.Fatal(err)
	}
	save(20, 30)
	wait.For(t, "30 records in the bucket", func() bool { return u.Stats().Uploaded == 30 })
	if err := u.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, o := range to.objects {
		for i := range o {
			if i > 0 && o[i].Parent != o[i-1].ID.Key {
				t.Errorf("record %d of an object has parent %v, after %v", i, o[i].Parent, o[i-1].ID.Key)
			}
		}
	}
	at := make([]bool, 30)
	to.Has(ns, 0, chainOf(1, 0, 30), at)
	for i, there := range at {
		if !there {
			t.Errorf("block %d is not there", i)
		}
	}
}
