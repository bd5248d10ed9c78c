package storetest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/store/disk"
)

// Save writes records in order, each as soon as the store takes it, and waits until all have
// ended. That the store was too busy for one ([disk.ErrBusy]) is no failure of the test.
func Save(t testing.TB, s *disk.Store, ops ...*disk.WriteOp) {
	t.Helper()
	var wait sync.WaitGroup
	for _, op := range ops {
		wait.Add(1)
		for {
			accepted, err := s.Write([]*disk.WriteOp{op}, func(op *disk.WriteOp) {
				if op.Err != nil && !errors.Is(op.Err, disk.ErrBusy) {
					t.Error(op.Err)
				}
				wait.Done()
			})
			if accepted == 1 {
				break
			}
			if !errors.Is(err, disk.ErrBusy) {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}
	wait.Wait()
}
