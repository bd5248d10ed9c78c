package object

import (
	"errors"
	"testing"

	"github.com/kvconn/kvconn/store"
)

func TestRecordsComeBack(t *testing.T) {
	inCloud(t, func(c *cloud) {
		n := c.open(nil)
		records, keys := n.chain(1, 20)
		if errs := n.write(records[0]); !errors.Is(errs[0], store.ErrBusy) {
			t.Errorf("a write before the bucket is known: %v", errs[0])
		}
		n.ready()
		before := c.server.Counts()
		n.mustWrite(records...)
		after := c.server.Counts()
		if puts := after.Put - before.Put; puts != 3 { // manifest, object, list
			t.Errorf("%d PUTs", puts)
		}
		if got := n.prefix(keys); got != 20 {
			t.Errorf("prefix of %d blocks", got)
		}
		n.mustRead(records...)
		if got := c.server.Counts().Get - after.Get; got > 2 {
			t.Errorf("%d GETs", got)
		}
		if u := n.Usage(); u.Records != 20 || u.Hits != 20 {
			t.Errorf("usage %+v", u)
		}
	})
}
