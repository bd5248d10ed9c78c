package store_test

import (
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// A rank whose leader is on another node writes blocks again that its own node has: no look-up there finds them. They
// count as used, so that they are uploaded where that waits for a second use.
func TestListenersHearOfWhatIsWrittenAgain(t *testing.T) {
	r := newRig(t)
	other := new(counter)
	chain := store.NewChain(r.fast)
	chain.Listen(other)
	var ops []*store.WriteOp
	for _, shard := range []connector.Shard{0, 1} {
		for n := range byte(6) {
			op := &store.WriteOp{Record: r.record(shard, n+1), Payload: payload(n)}
			op.Parent = connector.Key{n}
			ops = append(ops, op)
		}
	}
	write := func(ops ...*store.WriteOp) {
		t.Helper()
		ended := make(chan error, len(ops))
		if n, err := chain.Write(ops, func(op *store.WriteOp) { ended <- op.Err }); n != len(ops) || err != nil {
			t.Fatalf("%d of %d accepted: %v", n, len(ops), err)
		}
		for range ops {
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		}
	}
	write(slices.Concat(ops[:2], ops[3:5], ops[7:8])...)
	if len(other.used) != 0 {
		t.Errorf("heard %v of first writes", other.used)
	}
	write(ops...)
	if want := []string{"[0] 2", "[0] 2", "[1] 1"}; !slices.Equal(other.used, want) {
		t.Errorf("heard %v, want %v", other.used, want)
	}
}
