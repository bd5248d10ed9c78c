package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// sbom writes which modules are linked into the program, as CycloneDX: what scanners look for advisories by. It
// comes from the program itself, since go.mod also has what only tests and tools need. CycloneDX's own library knows the
// format's versions and order.
func (b *builder) sbom(p *program, static bool) error {
	info, err := buildinfo.ReadFile(p.path)
	if err != nil {
		return fmt.Errorf("list what %s is made of: %w", p.path, err)
	}
	components := []cyclonedx.Component{module("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, module(m.Path, m.Version, m.Sum))
	}
	list := cyclonedx.NewBOM()
	list.SerialNumber = "" // it would be another one each time
	list.Metadata = &cyclonedx.Metadata{
		Timestamp: b.at.UTC().Format(time.RFC3339),
		Component: &cyclonedx.Component{
			BOMRef: "kvconnd", Type: cyclonedx.ComponentTypeApplication, Name: "kvconnd", Version: b.version,
			Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
		},
	}
	list.Components = &components
	var text bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(list, cyclonedx.SpecVersion1_6); err != nil {
		return fmt.Errorf("write what %s is made of: %w", p.path, err)
	}
	return os.WriteFile(filepath.Join(b.done, fmt.Sprintf("kvconnd-%s-%s-%s.cdx.json", b.version, systemOf(static), p.arch)), text.Bytes(), 0o644)
}

// systemOf names what a program is for, as the files do that have it.
func systemOf(static bool) string {
	if static {
		return "image"
	}
	return "linux"
}

// module is a Go module. sum is the one of go.sum, of all its files; "" for none.
func module(path, version, sum string) cyclonedx.Component {
	at := "pkg:golang/" + path + "@" + url.PathEscape(version)
	c := cyclonedx.Component{BOMRef: at, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: at}
	if digest, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:")); err == nil && len(digest) > 0 {
		c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: fmt.Sprintf("%x", digest)}}
	}
	return c
}
