package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
)

// bucketNode is a node that shares a bucket with others. It may lose the bucket alone.
type bucketNode struct {
	*node
	bucket *s3proxy.Proxy
}

// newBucketNodes makes two nodes with one bucket, and starts them.
func newBucketNodes(t *testing.T, args ...string) (a, b *bucketNode) {
	t.Helper()
	c := newCloud(t)
	var nodes [2]*bucketNode
	for i := range nodes {
		n, proxy := c.nodeBehind(t, args...)
		n.start()
		nodes[i] = &bucketNode{n, proxy}
	}
	return nodes[0], nodes[1]
}

// lose takes the bucket away from the node until find.
func (n *bucketNode) lose() { n.bucket.Play(s3proxy.Clause{Do: s3proxy.Effect{Reset: true}}) }
func (n *bucketNode) find() { n.bucket.Stop() }

// wipe gives the node an empty disk, and waits until it knows that many records of the bucket.
func (n *bucketNode) wipe(records int64) {
	n.t.Helper()
	n.stop()
	if err := os.RemoveAll(n.dir); err != nil {
		n.t.Fatal(err)
	}
	n.start()
	n.follows(records)
}

// fillNodes has the engine answer prompts, and waits until both nodes have its ranks' records on disk and know all that
// is in the bucket. It returns the number of blocks.
func fillNodes(t *testing.T, e *instance, a, b *bucketNode, ps [][]uint32, want []engine.Result) (blocks int64) {
	t.Helper()
	same(t, "first run", e.run("first", ps), want)
	a.saved()
	b.saved()
	blocks = a.status().Store.Records
	if other := b.status().Store.Records; blocks == 0 || other != blocks {
		t.Fatalf("%d and %d records on the nodes' disks, want one on each for each block", blocks, other)
	}
	a.follows(2 * blocks)
	b.follows(2 * blocks)
	return blocks
}

// wholes is the number of tokens of prompts that can come from kvconn.
func wholes(ps [][]uint32) (tokens int) {
	for _, p := range ps {
		tokens += whole(p, 8)
	}
	return tokens
}

// prefixes are the prefixes of prompts that end with a block that can come from kvconn, each once.
func prefixes(ps [][]uint32) map[string]bool {
	all := make(map[string]bool)
	for _, p := range ps {
		for end := 8; end <= whole(p, 8); end += 8 {
			all[fmt.Sprint(p[:end])] = true
		}
	}
	return all
}

func overTwoNodes(o *engine.Options) { o.TensorParallel = 2 }

// An engine has its scheduler and one rank on one node, and the other rank on another. The scheduler's node hears of
// the other one's records from the bucket's lists alone. Each node loads its own rank's shards: from its disk if they
// are there, else from the bucket.
func TestEngineOverTwoNodesLoadsEachShardWhereItsRankIs(t *testing.T) {
	t.Parallel()
	ps := prompts(150, 3)
	want, all := reference(t, overTwoNodes, ps), wholes(ps)
	a, b := newBucketNodes(t)
	start := func() *instance {
		change := func(o *engine.Options) { overTwoNodes(o); processes(o) }
		e := newInstance(t, nil, change)
		o := engineOptions(change)
		co := clientOptions(a.socket, fmt.Sprintf("%s-%p", t.Name(), e.Engine), e.Engine, &o)
		if err := e.Connect(t.Context(), co, a.socket, b.socket); err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := start()
	blocks := fillNodes(t, e, a, b, ps, want)
	e.close()
	e = start()
	run := func(name string, fromBucketA, fromBucketB int64) {
		t.Helper()
		got := e.run(name, ps)
		same(t, name, got, want)
		if cached(got) != all || recomputed(got) != 0 {
			t.Errorf("%s: %d tokens cached, %d recomputed; want %d and 0", name, cached(got), recomputed(got), all)
		}
		if fa, fb := int64(a.fetched()), int64(b.fetched()); fa != fromBucketA || fb != fromBucketB {
			t.Errorf("%s: the nodes have fetched %d and %d records from the bucket; want %d and %d", name, fa, fb, fromBucketA, fromBucketB)
		}
	}
	run("another engine", 0, 0)
	loads := int64(len(prefixes(ps)))
	b.wipe(2 * blocks)
	run("the other node is wiped", 0, loads)
	a.wipe(2 * blocks)
	run("the scheduler's node is wiped", loads, loads)
	for _, n := range []*bucketNode{a, b} {
		if s := n.status(); len(s.Ranks) != 1 {
			t.Errorf("ranks %+v, want one on each node", s.Ranks)
		}
	}
	e.close()
	a.waitLetGo()
	b.waitLetGo()
}

// What the other rank's node cannot deliver fails there, and all ranks compute it again. Without that node, or without
// the bucket, the engine goes on.
func TestEngineOverTwoNodesOutlivesTheFaultsOfEach(t *testing.T) {
	notQuick(t)
	t.Parallel()
	ps := prompts(151, 3)
	want, all := reference(t, overTwoNodes, ps), wholes(ps)
	a, b := newBucketNodes(t)
	var tr trigger
	e := newInstanceAcrossWith(t, setup{engine: overTwoNodes, at: tr.at}, a.node, b.node)
	blocks := fillNodes(t, e, a, b, ps, want)
	run := func(name string) (fromCache, again int) {
		t.Helper()
		got := e.run(name, ps)
		same(t, name, got, want)
		return cached(got), recomputed(got)
	}
	served := func(name string) {
		t.Helper()
		if c, r := run(name); c != all || r != 0 {
			t.Errorf("%s: %d tokens cached, %d recomputed; want %d and 0", name, c, r, all)
		}
	}

	for _, point := range []string{atOffer, atLoading, atSave} {
		fresh := prompts(152+len(point), 1)
		wantFresh := reference(t, overTwoNodes, fresh)
		tr.arm(point, b.kill)
		same(t, "killed "+point, e.run("killed "+point, append(ps[:2:2], fresh...)), append(want[:2:2], wantFresh...))
		if tr.point != "" {
			t.Errorf("the point was not reached: %s", point)
		}
		if c, r := run("dead after a kill " + point); c != 0 || r != all {
			t.Errorf("%s: %d tokens cached and %d recomputed without the other node's daemon; want 0 and %d", point, c, r, all)
		}
		b.start()
		served("back after a kill " + point)
	}

	damage := func() {
		t.Helper()
		b.stop()
		if damageShard(t, b.dir, 1, 2) == 0 {
			t.Fatal("there is no such record")
		}
	}
	damage()
	b.start()
	b.follows(2 * blocks)
	served("a shard is damaged on the other node's disk, and whole in the bucket")
	damage()
	b.lose()
	b.start()
	if _, r := run("a shard is damaged, and its node has no bucket"); r == 0 {
		t.Error("nothing was computed again")
	}
	b.saved()
	served("the shard was saved again")

	a.lose()
	a.wait("the bucket's records are not offered", func() bool { return !a.status().Object.Offers })
	if c, r := run("the scheduler's node has no bucket"); c != 0 || r != 0 {
		t.Errorf("%d tokens cached, %d recomputed; nothing tells what the other node has", c, r)
	}
	a.find()
	a.follows(2 * blocks)
	served("the bucket is back")
	e.close()
	a.waitLetGo()
	b.waitLetGo()
}

// With the policy second-use the other node uploads what its rank saves again: no look-up there finds it, and the
// scheduler's node would never hear of it.
func TestEngineOverTwoNodesUploadsWhatItComputesTwice(t *testing.T) {
	notQuick(t) // a save that was planned counts as done for seconds
	t.Parallel()
	ps := prompts(160, 2)
	want := reference(t, overTwoNodes, ps)
	a, b := newBucketNodes(t, "--object-policy", "second-use")
	e := newInstanceAcross(t, overTwoNodes, a.node, b.node)
	same(t, "first run", e.run("first", ps), want)
	a.saved()
	b.saved()
	blocks := int64(len(prefixes(ps)))
	round := 0
	a.wait("both nodes' shards are in the bucket", func() bool {
		round++
		same(t, "again", e.run(fmt.Sprint("again ", round), ps), want)
		return a.status().Object.Records >= 2*blocks
	})
	got := e.run("last", ps)
	same(t, "last run", got, want)
	if cached(got) != wholes(ps) || recomputed(got) != 0 {
		t.Errorf("%d tokens cached, %d recomputed; want %d and 0", cached(got), recomputed(got), wholes(ps))
	}
}
