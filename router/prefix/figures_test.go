package prefix

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/docs"
	"github.com/kvconn/kvconn/router/prefix/coverage"
)

// The bounds that ADR 6 states; its times are those of benchmarks.
func TestBoundsOfTheDecision(t *testing.T) {
	for _, text := range []string{
		fmt.Sprintf("Up to %d,%03d consecutive blocks", coverage.MaxBlocks/1000, coverage.MaxBlocks%1000),
		fmt.Sprintf("a *group* for %d and more", coverage.GroupHolders),
		fmt.Sprintf("a bitmap of at most %d bytes a run", coverage.MaxBlocks/8),
		fmt.Sprintf("an entry has %d bits, %d of place and %d of the name's hash", placeBits+tagBits, placeBits, tagBits),
		fmt.Sprintf("**Eviction** looks at %d runs", evictSample),
		fmt.Sprintf("a counter that ticks %d times while the index is filled once", epochParts),
	} {
		docs.Says(t, "adr/0006-router-index.md", text)
	}
}
