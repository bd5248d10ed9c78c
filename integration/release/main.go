// Command release builds everything that kvconn is installed from, out of one checkout: wheels,
// tarballs, deb and rpm packages, container images, lists of what is linked, and their checksums. The same checkout gives
// the same bytes. It is a module of its own, so that nothing of what it needs is in go.mod above.
//
//	go -C integration/release run . --out dist
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/alecthomas/kong"
)

type cli struct {
	Out        string   `name:"out" default:"dist" placeholder:"DIR" help:"Where the files go; relative to the checkout."`
	Arch       []string `name:"arch" default:"amd64,arm64" enum:"amd64,arm64" help:"For which architectures, in Go's words."`
	Only       []string `name:"only" default:"wheel,tarball,deb,rpm,image" enum:"wheel,tarball,deb,rpm,image" help:"What to build."`
	Maintainer string   `name:"maintainer" default:"The kvconn authors <kvconn@localhost>" help:"Who answers for deb and rpm packages, with an address."`
	Python     string   `name:"python" default:"python3" help:"A Python that has pip, which builds the wheels."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var c cli
	kong.Parse(&c, kong.Name("release"), kong.Description("Builds what kvconn is installed from."))
	if err := c.run(ctx, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// run builds everything in a folder of its own, and moves the files to their place once all are built.
func (c *cli) run(ctx context.Context, log io.Writer) error {
	src, err := findCheckout(ctx, ".")
	if err != nil {
		return err
	}
	if src.modified {
		fmt.Fprintln(log, "the checkout has changes that are not committed; they are built, too")
	}
	out := c.Out
	if !filepath.IsAbs(out) {
		out = filepath.Join(src.root, out)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", out, err)
	}
	work, err := os.MkdirTemp(out, ".work-")
	if err != nil {
		return fmt.Errorf("make a folder to work in: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	b := &builder{checkout: src, work: work, done: filepath.Join(work, "done"), python: c.Python, maintainer: c.Maintainer, log: log}
	slices.Sort(c.Arch)
	for _, arch := range slices.Compact(c.Arch) {
		if err := b.build(ctx, arch, c.Only); err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	return publish(b.done, out, log)
}

// builder builds for one architecture at a time.
type builder struct {
	*checkout
	// work is for what is built on the way, done for what is published.
	work, done string
	python     string
	maintainer string
	log        io.Writer
}

// build makes the files for one architecture that only names.
func (b *builder) build(ctx context.Context, arch string, only []string) error {
	if err := os.MkdirAll(b.done, 0o755); err != nil {
		return err
	}
	notices, err := b.notices(ctx, arch)
	if err != nil {
		return err
	}
	kinds := []struct {
		name   string
		static bool
		make   func(context.Context, *program) error
	}{
		{"wheel", false, b.wheel}, {"tarball", false, b.tarball}, {"deb", false, b.packager("deb")}, {"rpm", false, b.packager("rpm")}, {"image", true, b.image},
	}
	programs := make(map[bool]*program)
	for _, k := range kinds {
		if !slices.Contains(only, k.name) {
			continue
		}
		if programs[k.static] == nil {
			fmt.Fprintf(b.log, "compile for %s, static: %v\n", arch, k.static)
			if programs[k.static], err = b.compile(ctx, arch, k.static, notices); err != nil {
				return err
			}
			if err := b.sbom(programs[k.static], k.static); err != nil {
				return err
			}
		}
		fmt.Fprintf(b.log, "%s for %s\n", k.name, arch)
		if err := k.make(ctx, programs[k.static]); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
	}
	return nil
}
