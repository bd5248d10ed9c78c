package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// notices are the licences of everything that is linked into kvconnd, which their authors want to go
// with it: those of Go and of each module, and those of packages that have their own.
func (b *builder) notices(ctx context.Context, arch string) ([]byte, error) {
	const fields = "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}\t{{$.Dir}}{{end}}{{end}}"
	out, err := b.output(ctx, goEnv(arch), "go", "list", "-deps", "-f", fields, "./cmd/kvconnd")
	if err != nil {
		return nil, err
	}
	goroot, err := b.output(ctx, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	root := strings.TrimSpace(string(goroot))
	found := map[string][]string{"Go": {filepath.Join(root, "LICENSE")}}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 4 {
			continue // of Go's library, or kvconn's own
		}
		name, module, dir := f[0]+" "+f[1], f[2], f[3]
		for ; strings.HasPrefix(dir, module); dir = filepath.Dir(dir) {
			files, err := licences(dir)
			if err != nil {
				return nil, err
			}
			found[name] = append(found[name], files...)
		}
		if len(found[name]) == 0 {
			return nil, fmt.Errorf("module %s has no licence in %s", name, module)
		}
	}
	return printNotices(found)
}

// licences are the files of a folder that are licences or notices.
func licences(dir string) (files []string, err error) {
	name := regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)([.-].*)?$`)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Type().IsRegular() && name.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, err
}

// printNotices prints each text once a module.
func printNotices(found map[string][]string) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "kvconnd contains the following software, under these licences.\n")
	for _, name := range slices.Sorted(maps.Keys(found)) {
		slices.Sort(found[name])
		fmt.Fprintf(&b, "\n%s\n%s\n", strings.Repeat("=", 80), name)
		for _, file := range slices.Compact(found[name]) {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("licence of %s: %w", name, err)
			}
			fmt.Fprintf(&b, "%s\n%s\n", strings.Repeat("-", 80), bytes.TrimSpace(text))
		}
	}
	return b.Bytes(), nil
}
