package disk

import (
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

const (
	// manifestsPart of the cap is the most that manifests may take.
	manifestsPart = 8
	// dirEntryBytes bounds what a name adds to its directory.
	dirEntryBytes = 128
)

// claimManifest takes room for a manifest that is about to be written. Segments are given
// up for it where the cap leaves none, which takes a barrier or two.
func (rc *reclaimer) claimManifest(bytes int) error {
	need := int64(fsio.AlignUp(bytes) + dirEntryBytes)
	p := rc.space
	p.mu.Lock()
	refused := p.smallB+need > p.maxBytes/manifestsPart
	if !refused {
		p.smallB += need
	}
	p.mu.Unlock()
	if refused {
		return fmt.Errorf("manifests take more than a %dth of the cap of %d bytes: %w", manifestsPart, p.maxBytes, store.ErrTooLarge)
	}
	for end := time.Now().Add(rc.slotWait); p.over() > 0; time.Sleep(stuckInterval) {
		if time.Now().After(end) {
			rc.unclaimManifest(bytes)
			return fmt.Errorf("no segment was given up within %v for a manifest: %w", rc.slotWait, store.ErrBusy)
		}
		rc.wakeShrinker()
	}
	return nil
}

func (rc *reclaimer) unclaimManifest(bytes int) {
	rc.space.mu.Lock()
	defer rc.space.mu.Unlock()
	rc.space.smallB -= int64(fsio.AlignUp(bytes) + dirEntryBytes)
}
