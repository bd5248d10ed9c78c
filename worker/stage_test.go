package worker

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

func newStager(t *testing.T, s Store, loadBytes int64) (*Stager, *host.Arena) {
	t.Helper()
	a := newArena(t, 16<<20)
	account, err := a.Account(host.AccountOptions{Namespace: testNamespace(), LoadBytes: loadBytes})
	if err != nil {
		t.Fatal(err)
	}
	stager := NewStager(s, account, func(connector.NamespaceDigest, connector.Shard) int { return layers * pieceBytes })
	t.Cleanup(stager.Close)
	return stager, a
}

func TestStagedBlocksAreVerifiedPinnedAndWhereTheySay(t *testing.T) {
	s := openStore(t)
	m := newEngineMemory(t)
	w := newWorker(t, s, nil)
	register(t, w, m)
	for slot := range 6 {
		m.fill(slot, 50+slot)
	}
	mustSave(t, w, transfer(0, 0, 1, 2, 3, 4, 5))
	stager, arena := newStager(t, s, 0)
	x := transfer(0, 0, 1, 2, 3, 4, 5)
	x.Blocks[4].Proof[0]++ // not what is stored
	got, release := stager.Handoff(t.Context(), testNamespace(), 0, x.Parent, x.Blocks)
	if len(got) != 4 {
		t.Fatalf("%d blocks staged, want those in front of the wrong one: 4", len(got))
	}
	if used := arena.Stats().UsedBytes; used != 4*int64(store.PayloadBufferSize(layers*pieceBytes)) {
		t.Errorf("%d bytes are pinned", used)
	}
	file := arena.File()
	for i, b := range got {
		buf := make([]byte, layers*pieceBytes)
		if _, err := file.ReadAt(buf, int64(b.Offset)); err != nil {
			t.Fatal(err)
		}
		if want := append(content(50+i, 0), content(50+i, 1)...); !bytes.Equal(buf, want) || xxh3.Hash(buf) != b.Sum {
			t.Errorf("block %d is not where it is said to be", i)
		}
	}
	release()
	release() // calls beyond the first do nothing
	if used := arena.Stats().UsedBytes; used != 0 {
		t.Errorf("%d bytes are pinned after the release", used)
	}
}

// What the rank's share has no room for is not offered.
func TestStagingIsBounded(t *testing.T) {
	s := openStore(t)
	m := newEngineMemory(t)
	w := newWorker(t, s, nil)
	register(t, w, m)
	mustSave(t, w, transfer(0, 0, 1, 2, 3, 4, 5))
	stager, _ := newStager(t, s, 2*int64(store.PayloadBufferSize(layers*pieceBytes)))
	x := transfer(0, 0, 1, 2, 3, 4, 5)
	stage := func() int {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		got, release := stager.Handoff(ctx, testNamespace(), 0, x.Parent, x.Blocks)
		if release != nil {
			release()
		}
		return len(got)
	}
	// What the disk does not bring within one call is there for a later one.
	n := stage()
	for end := time.Now().Add(testWait); n < 2 && time.Now().Before(end); n = stage() {
	}
	if n != 2 {
		t.Errorf("%d blocks staged, want 2", n)
	}
}

// What a disk delivers after the time of one call is there for the next.
func TestReadsThatWereLeftBehindGoOn(t *testing.T) {
	slow := &slowStore{release: make(chan struct{})}
	stager, arena := newStager(t, slow, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x := transfer(0, 0, 1)
	if got, release := stager.Handoff(ctx, testNamespace(), 0, x.Parent, x.Blocks); len(got) != 0 || release != nil {
		t.Fatalf("%d blocks staged from a disk that hangs", len(got))
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if got, _ := stager.Handoff(ctx, testNamespace(), 0, x.Parent, x.Blocks); len(got) != 0 {
		t.Fatalf("%d blocks staged from a disk that hangs", len(got))
	}
	close(slow.release)
	for arena.Stats().CleanBytes == 0 || arena.Stats().UsedBytes > 0 {
		time.Sleep(time.Millisecond)
	}
	got, release := stager.Handoff(t.Context(), testNamespace(), 0, x.Parent, x.Blocks)
	if len(got) != 2 {
		t.Fatalf("%d blocks staged, want 2", len(got))
	}
	release()
}
