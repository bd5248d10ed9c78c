package region

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

func good(k Kind) *Description {
	d := &Description{Format: Version, Device: "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", Kind: k}
	for i := range 3 {
		p := Part{Bytes: 1 << 20, AllocationBytes: 2 << 20}
		if k == IPC {
			p.Handle, p.Offset = bytes.Repeat([]byte{byte(i)}, handleBytes), 1<<20
		} else {
			p.Export = i
		}
		d.Parts = append(d.Parts, p)
	}
	return d
}

func TestADescriptionArrives(t *testing.T) {
	for _, k := range []Kind{IPC, VMM} {
		f, err := Seal(good(k))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if !Is(f) || IsStream(f) {
			t.Error("it is not taken for a description")
		}
		d, err := Read(f)
		if err != nil || d.Kind != k || d.Bytes() != 3<<20 || len(d.Parts) != 3 {
			t.Errorf("%+v, %v", d, err)
		}
		if _, err := f.WriteAt([]byte("x"), 0); err == nil {
			t.Error("it can be changed")
		}
	}
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	for name, change := range map[string]func(d *Description){
		"another format":      func(d *Description) { d.Format = 2 },
		"no device":           func(d *Description) { d.Device = "" },
		"a long device":       func(d *Description) { d.Device += strings.Repeat("0", 1000) },
		"lines in a device":   func(d *Description) { d.Device = d.Device[:30] + "\n\x1b[2Jalert" },
		"no dashes":           func(d *Description) { d.Device = "GPU-" + strings.Repeat("0", 36) },
		"an ordinal":          func(d *Description) { d.Device = "0" },
		"another kind":        func(d *Description) { d.Kind = "fabric" },
		"no parts":            func(d *Description) { d.Parts = nil },
		"too many parts":      func(d *Description) { d.Parts = make([]Part, MaxParts+1) },
		"no bytes":            func(d *Description) { d.Parts[1].Bytes = 0 },
		"negative bytes":      func(d *Description) { d.Parts[1].Bytes = -1 },
		"beyond its end":      func(d *Description) { d.Parts[1].Bytes = 1<<20 + 1 },
		"offset beyond":       func(d *Description) { d.Parts[1].Offset = 3 << 20 },
		"negative offset":     func(d *Description) { d.Parts[1].Offset = -1 },
		"offset that wraps":   func(d *Description) { d.Parts[1].Offset, d.Parts[1].Bytes = 1<<62, 1<<62 },
		"no allocation":       func(d *Description) { d.Parts[1].AllocationBytes = 0 },
		"a vast allocation":   func(d *Description) { d.Parts[1].AllocationBytes = 1 << 50 },
		"a short handle":      func(d *Description) { d.Parts[1].Handle = d.Parts[1].Handle[:63] },
		"exports of a handle": func(d *Description) { d.Parts[1].Export = 1 },
		"vmm with a handle":   func(d *Description) { d.Kind = VMM },
		"sum that overflows": func(d *Description) {
			for i := range d.Parts {
				d.Parts[i].AllocationBytes, d.Parts[i].Bytes, d.Parts[i].Offset = MaxRegionBytes, MaxRegionBytes, 0
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := good(IPC)
			change(d)
			text, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Parse(text); !errors.Is(err, ErrDescription) {
				t.Errorf("%v", err)
			}
		})
	}
	for _, text := range []string{"", "{", "null", "[]", `{"kvconn_region":1}`, `{"unknown":1}`, strings.Repeat("[", 1<<16)} {
		if _, err := Parse([]byte(text)); !errors.Is(err, ErrDescription) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	// What an engine wrote is quoted in the log, and must not fill it.
	if _, err := Parse([]byte(`{"` + strings.Repeat("x", MaxBytes/2) + `":1}`)); err == nil || len(err.Error()) > 1000 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	text, err := json.Marshal(good(VMM))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse(append(text, "{}"...)); !errors.Is(err, ErrDescription) {
		t.Errorf("two of them: %v", err)
	}
}

func TestMemoryIsNoDescription(t *testing.T) {
	f := memfd.Sealable(t, 0)
	if _, err := f.WriteString("{}"); err != nil {
		t.Fatal(err)
	}
	if Is(f) {
		t.Error("memory that can be written is taken for a description")
	}
	if _, err := Read(f); !errors.Is(err, ErrDescription) {
		t.Errorf("%v", err)
	}
	if err := f.Truncate(MaxBytes + 1); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(f); !errors.Is(err, ErrDescription) {
		t.Errorf("one that is too large: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, k := range []Kind{IPC, VMM} {
		text, err := json.Marshal(good(k))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Parse(text)
		if err != nil {
			return
		}
		if n := d.Bytes(); n <= 0 || n > MaxRegionBytes || len(d.Parts) > MaxParts {
			t.Fatalf("%d bytes in %d parts", n, len(d.Parts))
		}
		for _, p := range d.Parts {
			if p.Offset < 0 || p.Bytes <= 0 || p.Offset+p.Bytes > p.AllocationBytes {
				t.Fatalf("%+v", p)
			}
		}
	})
}
