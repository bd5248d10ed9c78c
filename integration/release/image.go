package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// image makes an OCI image with one layer and nothing below: the program, certificates for buckets, and folders.
// It is an archive that podman, skopeo, containerd and docker load.
func (b *builder) image(_ context.Context, p *program) (err error) {
	img, err := b.imageOf(p)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.work, "image-"+p.arch)
	list, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := "kvconnd:" + b.version
	err = list.AppendImage(img, layout.WithPlatform(v1.Platform{OS: "linux", Architecture: p.arch}), layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": b.version,
		"io.containerd.image.name":          "docker.io/library/" + name,
	}))
	if err != nil {
		return err
	}
	if err := writeDockerManifest(dir, img, name); err != nil {
		return err
	}
	entries, err := filesOf(dir)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(b.done, fmt.Sprintf("kvconnd-%s-image-%s.tar", b.version, p.arch)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return writeTar(f, b.at, entries)
}

func (b *builder) imageOf(p *program) (v1.Image, error) {
	var content bytes.Buffer
	if err := writeTar(&content, b.at, b.imageFiles(p)); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: b.at}
	img, err := mutate.Append(empty.Image, mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "integration/release"}})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", p.arch, created
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/kvconnd"},
		Cmd:        []string{"serve", "--dir", "/var/lib/kvconn"},
		Env:        []string{"PATH=/usr/bin"},
		WorkingDir: "/",
		// The store needs a file system with direct I/O, which that of a container's layers is not everywhere.
		Volumes:    map[string]struct{}{"/var/lib/kvconn": {}},
		StopSignal: "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "kvconnd",
			"org.opencontainers.image.version":  b.version,
			"org.opencontainers.image.revision": b.commit,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON), nil
}

// imageFiles is the file system of the image.
func (b *builder) imageFiles(p *program) []entry {
	var list []entry
	for _, dir := range strings.Fields("etc etc/ssl etc/ssl/certs run run/kvconn usr usr/bin usr/share usr/share/doc usr/share/doc/kvconnd var var/lib var/lib/kvconn") {
		list = append(list, entry{name: dir + "/", mode: 0o755})
	}
	return append(list,
		entry{name: "tmp/", mode: 0o1777},
		entry{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/:/sbin/nologin\n")},
		entry{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\n")},
		entry{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: certificates()},
		entry{name: "usr/bin/kvconnd", mode: 0o755, source: p.path},
		entry{name: "usr/share/doc/kvconnd/LICENSE", mode: 0o644, source: filepath.Join(b.root, "LICENSE")},
		entry{name: "usr/share/doc/kvconnd/NOTICES.txt", mode: 0o644, source: p.notices},
	)
}

// certificates are the roots that Mozilla trusts without a condition. A file has no place for conditions, so
// authorities that are trusted for a while only are left out.
func certificates() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer takes everything
		}
	}
	return b.Bytes()
}

// writeDockerManifest adds what docker needs that knows no OCI layout: it has the same blobs.
func writeDockerManifest(dir string, img v1.Image, name string) error {
	manifest, err := img.Manifest()
	if err != nil {
		return err
	}
	blob := func(d v1.Descriptor) string { return "blobs/" + d.Digest.Algorithm + "/" + d.Digest.Hex }
	entry := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{blob(manifest.Config), []string{name}, nil}
	for _, l := range manifest.Layers {
		entry.Layers = append(entry.Layers, blob(l))
	}
	j, err := json.Marshal([]any{entry})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), j, 0o644)
}

// filesOf are the files below a folder, in the order of their names.
func filesOf(dir string) (list []entry, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(dir, path)
		switch {
		case err != nil || relErr != nil:
			return errors.Join(err, relErr)
		case name == ".":
		case d.IsDir():
			list = append(list, entry{name: name + "/", mode: 0o755})
		default:
			list = append(list, entry{name: name, mode: 0o644, source: path})
		}
		return nil
	})
	return list, err
}
