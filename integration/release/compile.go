package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// program is kvconnd as it was built for one architecture.
type program struct {
	arch string
	// path is the file. NOTICES.txt lies beside it.
	path, notices string
}

// compile builds kvconnd. A static one runs without the system's loader, and so without GPUs.
func (b *builder) compile(ctx context.Context, arch string, static bool, notices []byte) (*program, error) {
	dir := filepath.Join(b.work, arch)
	tags := ""
	if static {
		dir, tags = dir+"-static", "nogpu"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p := &program{arch: arch, path: filepath.Join(dir, "kvconnd"), notices: filepath.Join(dir, "NOTICES.txt")}
	if err := os.WriteFile(p.notices, notices, 0o644); err != nil {
		return nil, err
	}
	// What differs between clones, work trees and folders of one commit stays out: Go's own stamps and the folder's name.
	const of = " -X github.com/kvconn/kvconn/internal/version."
	link := fmt.Sprintf("-ldflags=-s -w -buildid=%[1]scommit=%[2]s%[1]scommitTime=%[3]s%[1]smodified=%[4]t", of, b.commit, b.commitTime, b.modified)
	_, err := b.output(ctx, goEnv(arch), "go", "build", "-trimpath", "-buildvcs=false", link, "-tags="+tags, "-o", p.path, "./cmd/kvconnd")
	if err != nil {
		return nil, err
	}
	return p, checkLinking(p, static)
}

func goEnv(arch string) []string {
	return []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOWORK=off"}
}

// libraries are what the program may need of a system: every glibc has them, and no symbol is of a
// version.
func libraries() []string { return []string{"libc.so.6", "libdl.so.2", "libpthread.so.0"} }

// checkLinking fails if a program needs more of a system than its packages say.
func checkLinking(p *program, static bool) error {
	f, err := elf.Open(p.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[p.arch]; f.Machine != want {
		return fmt.Errorf("%s is for %s", p.path, f.Machine)
	}
	for _, segment := range f.Progs {
		if static && (segment.Type == elf.PT_INTERP || segment.Type == elf.PT_DYNAMIC) {
			return fmt.Errorf("%s is not static", p.path)
		}
	}
	if static {
		return nil
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	for _, library := range needed {
		if !slices.Contains(libraries(), library) {
			return fmt.Errorf("%s needs %s", p.path, library)
		}
	}
	symbols, err := f.ImportedSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	for _, s := range symbols {
		if s.Version != "" {
			return fmt.Errorf("%s needs %s of version %s", p.path, s.Name, s.Version)
		}
	}
	return nil
}
