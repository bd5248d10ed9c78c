package object

import (
	"context"
	"testing"

	"github.com/kvconn/kvconn/store/object/format"
)

// What is in a list of a writer is no orphan: before the collector judges, all lists that wait are merged.
func TestMergeBeforeOrphans(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		n := c.open(nil)
		n.ready()
		merged := 0
		collecting, err := newCollecting(n.Tier)
		if err != nil {
			t.Fatal(err)
		}
		collecting.log = func(context.Context, *format.List) error { return nil }
		collecting.merge = func(context.Context) error { merged++; return nil }
		if err := collecting.Merge(t.Context(), nil, nil); err != nil || merged != 1 {
			t.Errorf("merged %d times: %v", merged, err)
		}
	})
}
