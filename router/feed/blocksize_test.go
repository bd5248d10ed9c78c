package feed

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/blocksize"
)

// Nobody gave the size: the first event that says one is not lost, nor is one before it that says none.
func TestARankLearnsTheBlockSizeOfItsEngine(t *testing.T) {
	e := startOwn(t, listen(t), listen(t))
	e.publish(removedEvent(9))
	e.publish(storedEvent(0, []uint64{1}), storedEvent(1, []uint64{2}))
	o := e.options()
	o.BlockSize = blocksize.New(nil)
	x := newMemIndex()
	f := follow(t, o, x)
	wait.For(t, "a synced rank", func() bool { return f.Stats().State == StateSynced })
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2)...)
	if s := f.Stats(); s.MismatchedBlockSize != 0 || s.Batches != 2 || s.Blocks != 3 || s.Resyncs != 0 {
		t.Errorf("%+v", s)
	}
	if st := o.BlockSize.Status("m"); st.Tokens != testBlockSize || st.From != blocksize.Engines {
		t.Errorf("%+v", st)
	}
}

// Others have learnt another size meanwhile, and have it back: what the engine has is replayed.
func TestARankFollowsTheSizeThatOthersHaveLearnt(t *testing.T) {
	e := startOwn(t, listen(t), listen(t))
	e.publish(storedEvent(0, []uint64{1}))
	o := e.options()
	o.BlockSize = blocksize.New(nil)
	x := newMemIndex()
	f := follow(t, o, x)
	wait.For(t, "a synced rank", func() bool { return f.Stats().State == StateSynced })
	for i, other := range []string{"b", "c"} {
		o.BlockSize.EngineConnected(other, true)
		o.BlockSize.EngineSays(other, int32(8+i), 2*testBlockSize)
	}
	wait.For(t, "a refusal", func() bool { return f.Stats().State == StateRefused })
	wantKeys(t, x, 1)
	o.BlockSize.Forget("b")
	o.BlockSize.Forget("c")
	wait.For(t, "a synced rank", func() bool { return f.Stats().State == StateSynced })
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
}

// An engine that says two sizes is refused: it must not have all feeds of its model begin again with every event.
func TestAnEngineThatContradictsItselfIsRefused(t *testing.T) {
	e := startOwn(t, listen(t), listen(t))
	e.publish(storedEvent(0, []uint64{1}))
	o := e.options()
	o.BlockSize = blocksize.New(nil)
	x := newMemIndex()
	f := follow(t, o, x)
	wait.For(t, "a synced rank", func() bool { return f.Stats().State == StateSynced })
	wait.For(t, "a refusal", func() bool { // the subscription may arrive later than the first event
		e.publish(eventMap("BlockStored", field("block_hashes", []uint64{7}), field("token_ids", append(tokensOf(1), tokensOf(2)...)), field("block_size", 2*testBlockSize)))
		e.publish(storedEvent(0, []uint64{3}))
		return f.Stats().State == StateRefused
	})
	wantKeys(t, x, 1)
	if o.BlockSize.Tokens() != testBlockSize {
		t.Error(o.BlockSize.Tokens())
	}
}

// A store's only size is learnt while its snapshot is read; there is no second one.
func TestAStoresBlockSizeIsLearnt(t *testing.T) {
	o := residencyOptions()
	o.BlockSize = blocksize.New(nil)
	f, x := newResidency(t, o)
	tell(t, f, hello(1, false), namespace(0, testBlockSize), records(0, chain(false, 1, 2)...), snapshotEnd(5))
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2)...)
	if s := f.Stats(); s.MismatchedBlockSize != 0 || s.Namespaces != 1 || o.BlockSize.Tokens() != testBlockSize {
		t.Errorf("%+v, %d", s, o.BlockSize.Tokens())
	}
}

// Engines say another size than the first namespace has: the store is read again for the other one.
func TestAStoreIsReadAgainForAnotherBlockSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := residencyOptions()
		o.BlockSize = blocksize.New(nil)
		old := namespace(1, 2*testBlockSize)
		f, x, s := followStore(t, o,
			stream(t, hello(1, false), old, namespace(0, testBlockSize), records(0, chain(false, 1)[0]), snapshotEnd(5)),
			stream(t, hello(1, true), old, namespace(0, testBlockSize), heartbeat(5)),
			stream(t, hello(1, false), old, namespace(0, testBlockSize), records(0, chain(false, 1)[0]), snapshotEnd(5)))
		wantKeys(t, x, 1)
		o.BlockSize.EngineSays("a", 0, testBlockSize)
		soon()
		wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
		if st := f.Stats(); st.State != StateSynced || st.Snapshots != 2 || len(s.queries) != 3 || strings.Contains(s.queries[2], "epoch") {
			t.Errorf("%+v, %q", st, s.queries)
		}
	})
}

// A connection that is lost for a moment must not have all feeds of the model begin again.
func TestAnEngineThatIsAwayForAMomentKeepsItsVote(t *testing.T) {
	one, two := startProcess(t, listen(t)), startProcess(t, listen(t))
	size := blocksize.New(nil)
	start := func(p *process, rank int32) *Rank {
		o := (&ownEngine{pub: p.pub}).options()
		o.BlockSize, o.ID, o.VoteGrace = size, rank, time.Hour
		return follow(t, o, newMemIndex())
	}
	a, b := start(one, 0), start(two, 1)
	one.first(a, storedEvent(0, []uint64{1}))
	two.first(b, storedEvent(0, []uint64{1}))
	two.stop()
	wait.For(t, "the loss of b", func() bool { return b.Stats().Error != "" })
	if st := size.Status("m"); len(st.Engines) != 1 || len(st.Engines[0].Ranks) != 2 {
		t.Errorf("%+v", st)
	}
	two.again()
	wait.For(t, "another connection", func() bool { return b.Stats().Connects == 2 })
	if st := size.Status("m"); len(st.Engines) != 1 || len(st.Engines[0].Ranks) != 2 {
		t.Errorf("%+v", st)
	}
}

// The size is that of the engines that are there: the vote of a dead one does not count, and does again when it is back.
func TestADeadEnginesBlockSizeDoesNotCount(t *testing.T) {
	one, two := startProcess(t, listen(t)), startProcess(t, listen(t))
	size := blocksize.New(nil)
	start := func(p *process, rank int32) *Rank {
		o := (&ownEngine{pub: p.pub}).options()
		o.BlockSize, o.ID = size, rank
		return follow(t, o, newMemIndex())
	}
	a, b := start(one, 0), start(two, 1)
	one.first(a, storedEvent(0, []uint64{1}))
	two.first(b, storedEvent(0, []uint64{1}))
	two.stop()
	wait.For(t, "the loss of b", func() bool { return !b.Stats().Connected })
	two = two.again()
	doubled := eventMap("BlockStored", field("block_hashes", []uint64{7}), field("token_ids", append(tokensOf(1), tokensOf(2)...)), field("block_size", 2*testBlockSize))
	wait.For(t, "b's new size", func() bool {
		two.pub.Publish([]byte("kv"), seqFrame(0), eventBatch(doubled))
		return len(size.Status("m").Engines) == 2
	})
	if size.Tokens() != testBlockSize { // a tie
		t.Error(size.Tokens())
	}
	one.stop()
	wait.For(t, "b's size", func() bool { return size.Tokens() == 2*testBlockSize && len(size.Status("m").Engines) == 1 })
	one = one.again()
	wait.For(t, "a's vote", func() bool { return len(size.Status("m").Engines) == 2 })
	if size.Tokens() != 2*testBlockSize {
		t.Error(size.Tokens())
	}
	two.stop()
	wait.For(t, "a's size", func() bool { return size.Tokens() == testBlockSize })
	one.stop()
	wait.For(t, "the loss of both", func() bool { return !a.Stats().Connected && !b.Stats().Connected })
	if size.Tokens() != testBlockSize {
		t.Error(size.Tokens())
	}
}
