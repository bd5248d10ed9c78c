package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers its format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // the same
)

// packager returns what makes the package of a format, "deb" or "rpm".
func (b *builder) packager(format string) func(context.Context, *program) error {
	return func(_ context.Context, p *program) (err error) {
		// Info belongs to one format: the packagers change it.
		info := nfpm.WithDefaults(b.packageInfo(format, p))
		if err := nfpm.PrepareForPackager(info, format); err != nil {
			return err
		}
		packager, err := nfpm.Get(format)
		if err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(b.done, packager.ConventionalFileName(info)))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		return packager.Package(info, f)
	}
}

func (b *builder) packageInfo(format string, p *program) *nfpm.Info {
	info := &nfpm.Info{
		Name: "kvconnd", Arch: p.arch, Platform: "linux", Version: b.version, Release: "1", MTime: b.at,
		Section: "net", Priority: "optional", Vendor: "kvconn", Maintainer: b.maintainer, License: "Apache-2.0",
		DisableGlobbing: true,
	}
	info.Scripts = nfpm.Scripts{PostInstall: b.files("postinstall.sh"), PreRemove: b.files("preremove.sh"), PostRemove: b.files("postremove.sh")}
	info.Contents = files.Contents{
		content(p.path, "/usr/bin/kvconnd", "", 0o755),
		content(b.files("kvconnd.service"), "/usr/lib/systemd/system/kvconnd.service", "", 0o644),
		content(b.files("kvconnd.yaml"), "/etc/kvconn/kvconnd.yaml", files.TypeConfigNoReplace, 0o644),
		content(filepath.Join(b.root, "CHANGELOG.md"), "/usr/share/doc/kvconnd/CHANGELOG.md", "", 0o644),
	}
	const summary = "KV cache of LLM engines on local disk"
	const description = "Keeps the KV cache of vLLM and SGLang across restarts, and shares it between\nthe engines of a node and, through an S3 bucket, between nodes."
	// What useradd is in, and the libraries of the program: see libraries.
	switch format {
	case "deb":
		info.Depends, info.Description = []string{"libc6", "passwd"}, summary+"\n"+description
		info.Contents = append(info.Contents,
			content(b.files("copyright"), "/usr/share/doc/kvconnd/copyright", "", 0o644),
			content(p.notices, "/usr/share/doc/kvconnd/NOTICES.txt", "", 0o644))
	default:
		info.Depends, info.Description = []string{"/usr/sbin/useradd"}, description
		for _, library := range libraries() {
			info.Depends = append(info.Depends, library+"()(64bit)")
		}
		info.RPM = nfpm.RPM{Compression: "zstd", BuildHost: "localhost", Summary: summary}
		info.Contents = append(info.Contents,
			content(filepath.Join(b.root, "LICENSE"), "/usr/share/licenses/kvconnd/LICENSE", "", 0o644),
			content(p.notices, "/usr/share/licenses/kvconnd/NOTICES.txt", "", 0o644))
	}
	return info
}

func content(source, destination, kind string, mode fs.FileMode) *files.Content {
	return &files.Content{Source: source, Destination: destination, Type: kind, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode}}
}
