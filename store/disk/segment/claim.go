package segment

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

// ClaimManifest takes room for a manifest that is about to be written. Segments are given
// up for it where the cap leaves none, which takes a barrier or two.
func (rc *Reclaimer) ClaimManifest(bytes int) error {
	need := int64(fsio.AlignUp(bytes) + dirEntryBytes)
	p := rc.Space
	p.mu.Lock()
	refused := p.smallB+need > p.limits.MaxBytes/manifestsPart
	if !refused {
		p.smallB += need
	}
	p.mu.Unlock()
	if refused {
		return fmt.Errorf("manifests take more than a %dth of the cap of %d bytes: %w", manifestsPart, p.limits.MaxBytes, store.ErrTooLarge)
	}
	for end := time.Now().Add(rc.SlotWait); p.over() > 0; time.Sleep(stuckInterval) {
		if time.Now().After(end) {
			rc.UnclaimManifest(bytes)
			return fmt.Errorf("no segment was given up within %v for a manifest: %w", rc.SlotWait, store.ErrBusy)
		}
		rc.WakeShrinker()
	}
	return nil
}

// UnclaimManifest gives back what ClaimManifest took.
func (rc *Reclaimer) UnclaimManifest(bytes int) {
	rc.Space.mu.Lock()
	defer rc.Space.mu.Unlock()
	rc.Space.smallB -= int64(fsio.AlignUp(bytes) + dirEntryBytes)
}
