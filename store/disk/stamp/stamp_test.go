package stamp

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvconn/kvconn/store/disk/fsio"
)

func TestNewerStampSurvivesDamageToTheOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "STAMP")
	f, err := Create(fsio.OS{}, path, false)
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint64(5) {
		if err := f.Write(Stamp{Store: [16]byte{7}, Opens: 3, Barrier: n, Records: n * 10}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	read := func() (Stamp, error) {
		f, s, err := Open(fsio.OS{}, path, false)
		if f == nil {
			t.Fatal(err)
		}
		return s, errors.Join(err, f.Close())
	}
	want := Stamp{Store: [16]byte{7}, Opens: 3, Barrier: 4, Records: 40}
	if s, err := read(); err != nil || s != want {
		t.Errorf("%+v, %v", s, err)
	}
	flip := func(at int64) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[at] ^= 4
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flip(41)
	want.Barrier, want.Records = 3, 30
	if s, err := read(); err != nil || s != want {
		t.Errorf("newer one damaged: %+v, %v", s, err)
	}
	flip(4096 + 100)
	if _, err := read(); !errors.Is(err, ErrUnknown) {
		t.Errorf("both damaged: %v", err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := read(); !errors.Is(err, ErrUnknown) {
		t.Errorf("cut to nothing: %v", err)
	}
}
