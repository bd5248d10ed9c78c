package disk

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/docs"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

// What ADR 3 says of requests, barriers and the order of writing.
func TestFiguresOfTheStore(t *testing.T) {
	for _, text := range []string{
		fmt.Sprintf("Reads are split into chunks of %d MiB", defaultChunkBytes>>20),
		fmt.Sprintf("the default is %d ms", defaultBarrierInterval.Milliseconds()),
		fmt.Sprintf("one %d KiB write after each barrier", fsio.Align>>10),
	} {
		docs.Says(t, "adr/0003-store.md", text)
	}
}
