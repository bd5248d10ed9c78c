package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// entry is a file or, if its name ends in a slash, a folder of an archive. Its bytes are those of the file
// source, or else data.
type entry struct {
	name   string
	mode   int64
	source string
	data   []byte
}

// tarball makes the archive that is unpacked by hand.
func (b *builder) tarball(_ context.Context, p *program) (err error) {
	dir := fmt.Sprintf("kvconnd-%s-linux-%s", b.version, p.arch)
	f, err := os.Create(filepath.Join(b.done, dir+".tar.gz"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	err = writeTar(z, b.at, []entry{
		{name: dir + "/", mode: 0o755},
		{name: dir + "/kvconnd", mode: 0o755, source: p.path},
		{name: dir + "/LICENSE", mode: 0o644, source: filepath.Join(b.root, "LICENSE")},
		{name: dir + "/NOTICES.txt", mode: 0o644, source: p.notices},
		{name: dir + "/CHANGELOG.md", mode: 0o644, source: filepath.Join(b.root, "CHANGELOG.md")},
		{name: dir + "/kvconnd.service", mode: 0o644, source: b.files("kvconnd.service")},
		{name: dir + "/kvconnd.yaml", mode: 0o644, source: b.files("kvconnd.yaml")},
	})
	return errors.Join(err, z.Close())
}

// writeTar writes an archive that has nothing of the machine it is made on: everything is root's and of one time.
func writeTar(w io.Writer, at time.Time, entries []entry) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		if err := writeEntry(t, at, &e); err != nil {
			return fmt.Errorf("archive %s: %w", e.name, err)
		}
	}
	return t.Close()
}

func writeEntry(t *tar.Writer, at time.Time, e *entry) error {
	h := &tar.Header{Name: e.name, Mode: e.mode, ModTime: at, Typeflag: tar.TypeReg, Size: int64(len(e.data)), Format: tar.FormatUSTAR}
	if strings.HasSuffix(e.name, "/") {
		h.Typeflag = tar.TypeDir
	}
	if e.source == "" {
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err := t.Write(e.data)
		return err
	}
	f, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Size = info.Size()
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}
