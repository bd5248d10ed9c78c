package stopped

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/store/archive"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/disk/pins"
)

// A daemon may let its operator pin more of the cap than the default. An import evicts none of that.
func TestAnImportLeavesWhatIsPinned(t *testing.T) {
	const maxBytes = 64 << 20
	source, _ := storetest.Small(t, 64<<20)
	for p := range 500 {
		storetest.SaveSmall(t, source, storetest.SmallManifest().Digest(), storetest.SmallChain(connector.Scope{}, 1000+p, 10), 0)
	}
	var file bytes.Buffer
	if _, err := archive.Export(t.Context(), source, []*connector.Manifest{storetest.SmallManifest()}, &file); err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	s, err := disk.Open(t.Context(), disk.Options{
		Dir: dir, MaxBytes: maxBytes, SegmentBytes: 1 << 20, MinFreeBytes: -1, PinMaxPercent: disk.MaxPinPercent, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := s.OpenNamespace(storetest.SmallManifest())
	if err != nil {
		t.Fatal(err)
	}
	for n := range maxBytes * 55 / 100 / storetest.SmallPayloadBytes / 10 {
		storetest.SaveSmall(t, s, ns, storetest.SmallChain(connector.Scope{}, n, 10), 0)
	}
	added, err := s.Pins().Add(t.Context(), []pins.Pin{{Namespace: ns}}, time.Hour, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	o := Options{Dir: dir, MaxBytes: config.Cap{Space: config.Space{Set: true, Bytes: maxBytes}}, MinFree: config.Space{Set: true}, Logger: slog.New(slog.DiscardHandler)}
	if s, err = OpenToWrite(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if got := s.Stats().Pinned; got != added[0].Records {
		t.Errorf("%d of %d records are pinned", got, added[0].Records)
	}
	if _, err := Import(t.Context(), s, &file, nil); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats().Pinned; got != added[0].Records {
		t.Errorf("%d of %d records are pinned after an import", got, added[0].Records)
	}
}
