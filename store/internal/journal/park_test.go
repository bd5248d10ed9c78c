package journal

import (
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Whoever is told that a goroutine of Pebble stays for good finds the generation failed: an
// opening went on with a database that was not there, and the process ended.
func TestParkedMeansFailed(t *testing.T) {
	for range 2000 {
		g := newGeneration(Options{FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler)}, 0)
		j := &Journal{}
		j.gen.Store(g)
		var watcher sync.WaitGroup
		watcher.Go(func() {
			<-g.parked
			if !errors.Is(g.failure(), ErrFailed) {
				t.Error("parked, and not failed")
			}
		})
		j.Abandon("test")
		watcher.Wait()

		g = newGeneration(g.opts, 0)
		watcher.Go(func() {
			<-g.parked
			if !errors.Is(g.failure(), ErrFailed) {
				t.Error("parked, and not failed")
			}
		})
		go g.park(errors.New("test"))
		watcher.Wait()
	}
}
