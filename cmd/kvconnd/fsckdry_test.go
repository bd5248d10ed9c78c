package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
)

// Scripts look at the exit status: 1 if anything is wrong and nothing was changed, 3 if it was mended, then 0.
func TestFsckSaysWhatItWouldRepair(t *testing.T) {
	s, ns := storetest.Small(t, 64<<20)
	storetest.SaveSmall(t, s, ns, storetest.SmallChain(connector.Scope{}, 1, 20), 0)
	dir := s.Stats().Dir
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if status, out, errs := kvconnd("fsck", dir, "--no-repair", "--payload"); status != 0 || !strings.Contains(out, "20 records") {
		t.Errorf("intact: status %d, %s\n%s", status, errs, out)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "segments", "*"))
	if err != nil || len(segments) == 0 {
		t.Fatal(segments, err)
	}
	b, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	b[3*4096+5000] ^= 1
	if err := os.WriteFile(segments[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		status, out, errs := kvconnd("fsck", dir, "--no-repair", "--payload")
		if status != 1 || !strings.Contains(out, "would be dropped: record") || !strings.Contains(errs, "nothing was changed") || !strings.Contains(out, dir+":") {
			t.Errorf("damaged: status %d, %s\n%s", status, errs, out)
		}
	}
	if status, out, errs := kvconnd("fsck", dir, "--payload"); status != exitMended || !strings.Contains(out, "\ndropped: record") && !strings.HasPrefix(out, "dropped: record") {
		t.Errorf("repair: status %d, %s\n%s", status, errs, out)
	}
	if status, _, errs := kvconnd("fsck", dir, "--no-repair", "--payload"); status != 0 {
		t.Errorf("after the repair: status %d, %s", status, errs)
	}
}
