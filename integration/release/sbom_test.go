package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// This test's own program stands for kvconnd: it has the stamps of every Go program.
func TestTheListOfSoftwareHasWhatIsLinked(t *testing.T) {
	b, p := testBuilder(t)
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p.path = own
	write := func(static bool) []byte {
		t.Helper()
		if err := b.sbom(p, static); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(b.done, map[bool]string{false: "kvconnd-1.2.3-linux-amd64.cdx.json", true: "kvconnd-1.2.3-image-amd64.cdx.json"}[static]))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	text := write(false)
	if !bytes.Equal(text, write(true)) || !bytes.Equal(text, write(false)) {
		t.Error("equal programs have different lists")
	}
	var list cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(text), cyclonedx.BOMFileFormatJSON).Decode(&list); err != nil {
		t.Fatal(err)
	}
	if c := list.Metadata.Component; c.Name != "kvconnd" || c.Version != "1.2.3" || list.Metadata.Timestamp != "2023-11-14T22:13:20Z" || list.SerialNumber != "" {
		t.Errorf("%+v", list.Metadata)
	}
	found := make(map[string]cyclonedx.Component)
	for _, c := range *list.Components {
		found[c.Name] = c
	}
	kong := found["github.com/alecthomas/kong"]
	if kong.Version == "" || kong.PackageURL != "pkg:golang/github.com/alecthomas/kong@"+kong.Version || len((*kong.Hashes)[0].Value) != 64 {
		t.Errorf("%+v", kong)
	}
	if c := found["std"]; "go"+c.Version != runtime.Version() {
		t.Errorf("%+v", c)
	}
	// Modules that go.mod has and the program has not.
	if _, ok := found["github.com/Microsoft/go-winio"]; ok {
		t.Error("a module that is not linked is listed")
	}
}

func TestAProgramWithoutStampsHasNoList(t *testing.T) {
	b, p := testBuilder(t)
	if err := b.sbom(p, false); err == nil {
		t.Error("a file that is no Go program has a list")
	}
	if left, err := os.ReadDir(b.done); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
