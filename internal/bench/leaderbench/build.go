package leaderbench

import (
	"context"
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

// build writes the records of whole prompts, under the keys that the leader will hash, and
// those of a last prompt's beginning.
func (b *bench) build(ctx context.Context, s *disk.Store) error {
	var err error
	if b.ns, err = s.OpenNamespace(b.manifest); err != nil {
		return err
	}
	w := &writer{s: s, payload: store.AlignedBuffer(PayloadBytes), done: make(chan error, writeBatch)}
	root := connector.RootKey(blockSize, connector.Scope{})
	perPrompt := b.o.Tokens / blockSize
	var tokens []uint32
	var block, scratch []byte
	for at := 0; at < b.o.Records && ctx.Err() == nil; at += perPrompt {
		tokens = b.prompt(at/perPrompt, tokens)
		var parent connector.Key // none, as a record knows it
		chained := root
		for i := range min(perPrompt, b.o.Records-at) {
			block = connector.AppendTokens(block[:0], tokens[blockSize*i:blockSize*(i+1)])
			chained, scratch = connector.NextKey(chained, block, scratch)
			if err := w.add(store.RecordID{Namespace: b.ns, Key: chained}, parent); err != nil {
				return err
			}
			parent = chained
		}
		if b.o.Progress != nil {
			b.o.Progress(min(at+perPrompt, b.o.Records))
		}
	}
	if err := w.flush(); err != nil {
		return err
	}
	return ctx.Err()
}

// writer writes records in batches.
type writer struct {
	s       *disk.Store
	payload []byte
	ops     []*store.WriteOp
	used    int
	done    chan error
}

func (w *writer) add(id store.RecordID, parent connector.Key) error {
	if w.used == len(w.ops) {
		w.ops = append(w.ops, new(store.WriteOp))
	}
	op := w.ops[w.used]
	op.ID, op.Parent, op.Payload = id, parent, w.payload
	if w.used++; w.used < writeBatch {
		return nil
	}
	return w.flush()
}

func (w *writer) flush() error {
	if w.used == 0 {
		return nil
	}
	n, err := w.s.Write(w.ops[:w.used], func(op *store.WriteOp) { w.done <- op.Err })
	if err != nil {
		return fmt.Errorf("write %d of %d: %w", n, w.used, err)
	}
	for range w.used {
		if e := <-w.done; e != nil {
			err = e
		}
	}
	w.used = 0
	return err
}

// manifest is that of a model with layers of one kind on one rank.
func manifest() *connector.Manifest {
	return &connector.Manifest{
		Engine: "bench", Model: "leader", KVDType: "bfloat16", BlockSize: blockSize,
		Groups:         []connector.Group{{Layers: 1, KVHeads: 1, HeadSize: 128, Layout: "bench"}},
		TensorParallel: 1, PipelineParallel: 1, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
}
