package integration

import (
	"encoding/json"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/store/disk"
)

func TestFsckSaysExactlyWhatItDropped(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	ps := prompts(30, 4)
	want := reference(t, nil, ps)
	e := newInstance(t, n, nil)
	same(t, "first run", e.run("first", ps), want)
	path, err := daemonBinary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "fsck", n.dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "in use") {
		t.Errorf("fsck of a store in use: %v, %s", err, out)
	}
	n.saved()
	records := n.status().Store.Records
	n.stop()
	fsck := func(status int) disk.FsckReport {
		t.Helper()
		cmd := exec.Command(path, "fsck", "--payload", "--json", n.dir)
		out, err := cmd.Output()
		if got := cmd.ProcessState.ExitCode(); got != status {
			t.Fatalf("fsck: status %d, want %d: %v, %s", got, status, err, out)
		}
		var r disk.FsckReport
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := fsck(0); !r.Clean() || r.Records != records {
		t.Errorf("fsck of a good store: %+v, want %d records and nothing else", r, records)
	}
	flipPayloads(t, n.dir, rand.New(rand.NewPCG(3, 4)))
	r := fsck(3)
	if len(r.Dropped) == 0 || r.Records+int64(len(r.Dropped)) != records {
		t.Errorf("fsck after flipped bits: %d records left and %d dropped of %d", r.Records, len(r.Dropped), records)
	}
	if r := fsck(0); !r.Clean() {
		t.Errorf("second fsck: %+v, want nothing left to do", r)
	}
	n.start()
	same(t, "after fsck", e.run("after", ps), want)
	if c := n.status().Store.Corrupt; c != 0 {
		t.Errorf("%d corrupt records found after fsck --payload", c)
	}
	out, err = exec.Command(path, "fsck", t.TempDir()).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "holds no store") {
		t.Errorf("fsck of an empty directory: %v, %s", err, out)
	}
}
