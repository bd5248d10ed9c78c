package stopped

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/seal"
)

// A command that is given the wrong keys, or none, says so, and leaves all records to the next one: also of a store whose journal is lost.
func TestWrongKeysAreSaidAndCostNothing(t *testing.T) {
	ring := func(n byte) *seal.Ring {
		r, err := seal.New(seal.Key{n, 1, 2, 3})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const maxBytes = 64 << 20
	for name, c := range map[string]struct {
		right  *seal.Ring
		wrong  []*seal.Ring
		wanted string
	}{
		"sealed":     {ring(1), []*seal.Ring{nil, ring(2)}, "are sealed"},
		"not sealed": {nil, []*seal.Ring{ring(1)}, "are not sealed"},
	} {
		for _, lost := range []bool{false, true} {
			dir := t.TempDir()
			s, err := disk.Open(t.Context(), disk.Options{
				Dir: dir, MaxBytes: maxBytes, SegmentBytes: 1 << 20, MinFreeBytes: -1, Ring: c.right, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			ns, err := s.OpenNamespace(storetest.SmallManifest())
			if err != nil {
				t.Fatal(err)
			}
			for p := range 20 {
				storetest.SaveSmall(t, s, ns, storetest.SmallChain(connector.Scope{}, p, 10), 0)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if lost {
				err := errors.Join(os.RemoveAll(filepath.Join(dir, recovery.JournalDir)), os.Remove(filepath.Join(dir, recovery.SnapshotFile)))
				if err != nil {
					t.Fatal(err)
				}
			}
			o := Options{Dir: dir, MaxBytes: config.Cap{Space: config.Space{Set: true, Bytes: maxBytes}}, MinFree: config.Space{Set: true}, Logger: slog.New(slog.DiscardHandler)}
			for _, o.Ring = range c.wrong {
				if s, err := OpenToRead(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.wanted) {
					t.Errorf("%s, journal lost %v: to read: %v", name, lost, err)
					_ = s.Close()
				}
				if s, err := OpenToWrite(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.wanted) {
					t.Errorf("%s, journal lost %v: to write: %v", name, lost, err)
					_ = s.Close()
				}
			}
			o.Ring = c.right
			if s, err = OpenToRead(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if got := s.Stats().Records; got != 200 {
				t.Errorf("%s, journal lost %v: %d of 200 records are left", name, lost, got)
			}
			_ = s.Close()
		}
	}
}
