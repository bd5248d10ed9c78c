package segment

import (
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
)

// recheckInterval is how often a writer that waits for a slot looks for itself: room for
// a segment may come from outside, without anyone telling.
const recheckInterval = 20 * time.Millisecond

// Allocate returns a free slot. It makes a segment if the cap leaves room, or waits for
// the eviction and the barrier that free a slot.
func (rc *Reclaimer) Allocate(slotBytes int64) (index.Ref, error) {
	var timeout, recheck <-chan time.Time
	if rc.Space.starved(slotBytes) {
		return index.NoRef, fmt.Errorf("no room for a slot of %d bytes: %w: %w", slotBytes, store.ErrBusy, errNoRoom)
	}
	for {
		ref, freed, grow := rc.Space.take(slotBytes)
		if ref != index.NoRef {
			rc.relieve(slotBytes, false)
			return ref, nil
		}
		if grow {
			if rc.grow(slotBytes) {
				continue
			}
			// Tried again after a pause, and not indefinitely: it may fail each time. The
			// failure itself wakes all that wait for a slot, this writer too.
			freed = nil
		}
		if timeout == nil {
			timer := time.NewTimer(rc.SlotWait)
			defer timer.Stop()
			timeout = timer.C
			ticker := time.NewTicker(recheckInterval)
			defer ticker.Stop()
			recheck = ticker.C
			rc.Space.wait(slotBytes, 1)
			defer rc.Space.wait(slotBytes, -1)
		}
		rc.relieve(slotBytes, true)
		select {
		case <-freed:
		case <-recheck:
		case <-timeout:
			return index.NoRef, fmt.Errorf("no slot was freed within %v: %w", rc.SlotWait, store.ErrBusy)
		case <-rc.Space.o.Journal.Failed():
			return index.NoRef, fmt.Errorf("journal failed: %w", store.ErrIO)
		}
	}
}
