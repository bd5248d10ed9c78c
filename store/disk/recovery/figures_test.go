package recovery

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/docs"
)

// What ADR 3 says of headers and of journals that fail.
func TestFiguresOfRecovery(t *testing.T) {
	p := DefaultPauses()
	const generation = 250 // KB that each failure keeps: see package journal
	day := int(24*time.Hour/p.Rare) * generation / 1000
	for _, text := range []string{
		fmt.Sprintf("headers are read, by %d goroutines", rebuilders),
		fmt.Sprintf("Up to slots of %d KiB whole stretches of %d KiB are read", stretchSlotBytes>>10, stretchBytes>>10),
		fmt.Sprintf("from the %dth on one is tried every %d minutes (%d MB a day)", healMany, int(p.Rare.Minutes()), (day+5)/10*10),
	} {
		docs.Says(t, "adr/0003-store.md", text)
	}
	if p.Forgive != time.Hour {
		t.Errorf("a journal is forgiven its failures after %v", p.Forgive)
	}
	docs.Says(t, "adr/0003-store.md", "until a journal has worked for an hour")
}
