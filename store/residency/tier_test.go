package residency_test

import (
	"errors"
	"net/url"
	"testing"

	"github.com/kvconn/kvconn/store/residency"
)

func TestARequestNamesItsTier(t *testing.T) {
	for _, tier := range []string{residency.Disk, residency.Object} {
		q := url.Values{}
		residency.TierQuery(q, tier)
		if got, err := residency.ParseTier(q); got != tier || err != nil {
			t.Errorf("%s: %q, %v", tier, got, err)
		}
		for _, other := range []string{residency.Disk, residency.Object} {
			if err := residency.CheckContentType(residency.ContentType(tier), other); errors.Is(err, residency.ErrTier) == (tier == other) {
				t.Errorf("a stream of %s is taken for one of %s: %v", tier, other, err)
			}
		}
	}
	if got, err := residency.ParseTier(url.Values{"tier": {"disk"}}); got != residency.Disk || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := residency.ParseTier(url.Values{"tier": {"host"}}); !errors.Is(err, residency.ErrTier) {
		t.Errorf("%v", err)
	}
	// Releases before tiers had this content type, and no other.
	if got := residency.ContentType(residency.Disk); got != "application/vnd.kvconn.residency" {
		t.Errorf("%q", got)
	}
}
