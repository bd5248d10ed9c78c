package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// sumsFile has the checksums, in the form that `sha256sum --check` reads.
const sumsFile = "SHA256SUMS"

// publish moves what was built to its place, and writes the checksums last.
func publish(from, to string, log io.Writer) error {
	entries, err := os.ReadDir(from) // in the order of names
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, e := range entries {
		file := filepath.Join(from, e.Name())
		sum, err := checksum(file)
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sum, e.Name())
		// What a builder's umask forbids is not for those who install.
		if err := os.Chmod(file, 0o644); err != nil {
			return err
		}
	}
	list := filepath.Join(from, sumsFile)
	if err := errors.Join(os.WriteFile(list, sums.Bytes(), 0o644), os.Chmod(list, 0o644)); err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Rename(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	fmt.Fprintf(log, "in %s:\n%s", to, &sums)
	return os.Rename(list, filepath.Join(to, sumsFile))
}

func checksum(file string) (sum []byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}
