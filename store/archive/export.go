package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/steer"
)

// Source is a store that records are taken from.
type Source interface {
	store.Exporter
	// Recent returns the records of a namespace, parents before the blocks that follow them.
	Recent(ctx context.Context, ns connector.NamespaceDigest, maxBytes int64) ([]steer.Resident, error)
}

const (
	// batchRecords are read at one time, or as many as have batchBytes.
	batchRecords, batchBytes = 32, 64 << 20
	// again is after how many records a namespace is written once more: its first frame may get damaged.
	again = 256
)

// Exported is what an export has written.
type Exported struct {
	Namespaces int
	Records    int64
	Bytes      int64
	// Gone were evicted meanwhile, Failed could not be read or were corrupt.
	Gone, Failed int64
}

// Export writes all records of namespaces, each verified, and returns how many. It ends with the first error of w.
func Export(ctx context.Context, src Source, manifests []*connector.Manifest, w io.Writer) (Exported, error) {
	e := &export{src: src, out: writer{w: newWriter(w)}}
	for _, m := range manifests {
		if err := e.namespace(ctx, m); err != nil {
			return e.done, err
		}
		e.done.Namespaces++
	}
	if err := e.out.write(&frame{kind: kindEnd}, nil); err != nil {
		return e.done, err
	}
	return e.done, e.out.w.Flush()
}

type export struct {
	src  Source
	out  writer
	done Exported
}

func (e *export) namespace(ctx context.Context, m *connector.Manifest) error {
	ns, text := m.Digest(), m.Canonical()
	list, err := e.src.Recent(ctx, ns, math.MaxInt64)
	if err != nil {
		return fmt.Errorf("list records of namespace %v: %w", ns, err)
	}
	head := &frame{kind: kindNamespace, Record: store.Record{ID: store.RecordID{Namespace: ns}}}
	for at := 0; at == 0 || len(list) > 0; at++ {
		if at%(again/batchRecords) == 0 {
			if err := e.out.write(head, text); err != nil {
				return err
			}
		}
		n, bytes := 0, 0
		for n < min(len(list), batchRecords) && (n == 0 || bytes+list[n].Bytes <= batchBytes) {
			bytes += list[n].Bytes
			n++
		}
		if err := e.batch(ctx, list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// batch reads some records and writes those that are intact.
func (e *export) batch(ctx context.Context, list []steer.Resident) error {
	ops := make([]*store.ReadOp, len(list))
	for i := range list {
		ops[i] = &store.ReadOp{Record: store.Record{ID: list[i].ID}, Payload: store.AlignedBuffer(list[i].Bytes)}
	}
	if len(ops) > 0 {
		e.src.Export(ctx, ops, func(*store.ReadOp) {})
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, op := range ops {
		switch {
		case errors.Is(op.Err, store.ErrGone):
			e.done.Gone++
		case op.Err != nil:
			e.done.Failed++
		default:
			if err := e.out.write(&frame{kind: kindRecord, Record: op.Record, scope: op.Scope}, op.Payload); err != nil {
				return err
			}
			e.done.Records++
			e.done.Bytes += int64(len(op.Payload))
		}
	}
	return nil
}
