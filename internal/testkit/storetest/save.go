package storetest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Save writes records in order, each as soon as the store takes it, and waits until all have
// ended. A store that is too busy for one ([store.ErrBusy]) does not fail the test.
func Save(t testing.TB, s store.Writer, ops ...*store.WriteOp) {
	t.Helper()
	var wait sync.WaitGroup
	for _, op := range ops {
		wait.Add(1)
		for {
			accepted, err := s.Write([]*store.WriteOp{op}, func(op *store.WriteOp) {
				if op.Err != nil && !errors.Is(op.Err, store.ErrBusy) {
					t.Error(op.Err)
				}
				wait.Done()
			})
			if accepted == 1 {
				break
			}
			if !errors.Is(err, store.ErrBusy) {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}
	wait.Wait()
}

// Has reports whether a level has a record.
func Has(l interface {
	Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool)
}, id store.RecordID) bool {
	at := []bool{false}
	l.Present(id.Namespace, id.Shard, []connector.Key{id.Key}, at)
	return at[0]
}
