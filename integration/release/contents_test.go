package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/blakesmith/ar"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/sassoftware/go-rpmutils"
)

// untar reads an archive: the modes and the bytes of its files, by name.
func untar(t *testing.T, r io.Reader) (modes map[string]int64, data map[string]string) {
	t.Helper()
	modes, data = make(map[string]int64), make(map[string]string)
	for a := tar.NewReader(r); ; {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return modes, data
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(h.Name, "./")
		modes[name], data[name] = h.Mode, string(b)
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 1_700_000_000 {
			t.Errorf("%s is of %d, %d, %s", name, h.Uid, h.Gid, h.ModTime)
		}
	}
}

func gunzip(t *testing.T, b []byte) io.Reader {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func TestTarballHasWhatIsInstalled(t *testing.T) {
	b, p := testBuilder(t)
	modes, data := untar(t, gunzip(t, makeAll(t, b, p)["kvconnd-1.2.3-linux-amd64.tar.gz"]))
	const dir = "kvconnd-1.2.3-linux-amd64/"
	if modes[dir+"kvconnd"] != 0o755 || !strings.Contains(data[dir+"LICENSE"], "Apache License") || data[dir+"NOTICES.txt"] != "notices" || !strings.Contains(data[dir+"kvconnd.service"], "ExecStart=") {
		t.Errorf("%v", slices.Sorted(maps.Keys(modes)))
	}
}

func TestDebHasWhatIsInstalled(t *testing.T) {
	b, p := testBuilder(t)
	parts := make(map[string][]byte)
	for a := ar.NewReader(bytes.NewReader(makeAll(t, b, p)["kvconnd_1.2.3-1_amd64.deb"])); ; {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if parts[strings.TrimRight(h.Name, "/ ")], err = io.ReadAll(a); err != nil {
			t.Fatal(err)
		}
	}
	modes, control := untar(t, gunzip(t, parts["control.tar.gz"]))
	for _, want := range []string{"Package: kvconnd\n", "Version: 1.2.3-1\n", "Architecture: amd64\n", "Maintainer: Somebody <somebody@example.org>\n", "Depends: libc6, passwd\n"} {
		if !strings.Contains(control["control"], want) {
			t.Errorf("control lacks %q:\n%s", want, control["control"])
		}
	}
	if control["conffiles"] != "/etc/kvconn/kvconnd.yaml\n" || modes["postinst"] != 0o755 || modes["prerm"] != 0o755 || modes["postrm"] != 0o755 {
		t.Errorf("%q, %v", control["conffiles"], modes)
	}
	modes, data := untar(t, gunzip(t, parts["data.tar.gz"]))
	if modes["usr/bin/kvconnd"] != 0o755 || modes["etc/kvconn/kvconnd.yaml"] != 0o644 || !strings.Contains(data["usr/lib/systemd/system/kvconnd.service"], "ExecStart=/usr/bin/kvconnd serve --config /etc/kvconn/kvconnd.yaml\n") || data["usr/share/doc/kvconnd/copyright"] == "" || data["usr/share/doc/kvconnd/NOTICES.txt"] != "notices" {
		t.Errorf("%v", modes)
	}
}

// The file is for everybody to read, since the service's user is for the operator to choose; a token must not be.
func TestTheConfigurationSaysWhatASecretNeeds(t *testing.T) {
	text, err := os.ReadFile("files/kvconnd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "http_token") || !strings.Contains(string(text), "chmod 600") {
		t.Errorf("whoever sets http_token here shows it to all users:\n%s", text)
	}
}

// By default systemd gives a service up for good that fails five times in ten seconds: as one does within a second of a boot whose
// network has no addresses yet.
func TestADaemonThatCannotStartYetIsTriedAgain(t *testing.T) {
	unit, err := os.ReadFile("files/kvconnd.service")
	if err != nil {
		t.Fatal(err)
	}
	settings := strings.Split(string(unit), "\n")
	for _, want := range []string{"StartLimitIntervalSec=0", "Restart=on-failure", "RestartSec=2s"} {
		if !slices.Contains(settings, want) {
			t.Errorf("the unit lacks %s", want)
		}
	}
}

// By default systemd stops a whole service if the kernel kills one of its processes for want of memory. The daemon replaces a
// copier that was killed, and serves on.
func TestACopierThatIsKilledForMemoryDoesNotStopTheDaemon(t *testing.T) {
	unit, err := os.ReadFile("files/kvconnd.service")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(strings.Split(string(unit), "\n"), "OOMPolicy=continue") {
		t.Errorf("systemd stops the daemon:\n%s", unit)
	}
}

// systemd's own limit on locked memory is 8 MiB, and a host tier has gigabytes, which copiers lock for their GPUs.
func TestTheServiceMayLockTheHostTier(t *testing.T) {
	unit, err := os.ReadFile("files/kvconnd.service")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(strings.Split(string(unit), "\n"), "LimitMEMLOCK=infinity") {
		t.Errorf("a driver that asks for the limit refuses to lock the host tier:\n%s", unit)
	}
}

// A container that mounts the folder of the socket keeps the folder that was there when it started: a service that makes another
// one at each start is never found again by the engines in it.
func TestARestartLeavesTheFolderThatContainersMount(t *testing.T) {
	unit, err := os.ReadFile("files/kvconnd.service")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(unit), "\nRuntimeDirectory=kvconn\nRuntimeDirectoryPreserve=yes\n") {
		t.Errorf("systemd removes the folder of the socket at each stop:\n%s", unit)
	}
}

func TestRPMHasWhatIsInstalled(t *testing.T) {
	b, p := testBuilder(t)
	rpm, err := rpmutils.ReadRpm(bytes.NewReader(makeAll(t, b, p)["kvconnd-1.2.3-1.x86_64.rpm"]))
	if err != nil {
		t.Fatal(err)
	}
	if nevra, err := rpm.Header.GetNEVRA(); err != nil || nevra.Version != "1.2.3" || nevra.Release != "1" || nevra.Arch != "x86_64" {
		t.Errorf("%+v, %v", nevra, err)
	}
	infos, err := rpm.Header.GetFiles()
	if err != nil {
		t.Fatal(err)
	}
	const config = 1 | 1<<4 // %config(noreplace)
	modes, flags := make(map[string]int), make(map[string]int)
	for _, f := range infos {
		modes[f.Name()], flags[f.Name()] = f.Mode()&0o7777, f.Flags()
		if f.UserName() != "root" || f.GroupName() != "root" || f.Mtime() != 1_700_000_000 {
			t.Errorf("%s is of %s, %s, %d", f.Name(), f.UserName(), f.GroupName(), f.Mtime())
		}
	}
	if modes["/usr/bin/kvconnd"] != 0o755 || modes["/usr/lib/systemd/system/kvconnd.service"] != 0o644 || modes["/usr/share/licenses/kvconnd/NOTICES.txt"] != 0o644 || flags["/etc/kvconn/kvconnd.yaml"]&config != config {
		t.Errorf("%v, %v", modes, flags)
	}
	requires, err := rpm.Header.GetStrings(rpmutils.REQUIRENAME)
	for _, want := range []string{"/usr/sbin/useradd", "libc.so.6()(64bit)"} {
		if err != nil || !slices.Contains(requires, want) {
			t.Errorf("%v, %v", requires, err)
		}
	}
	for tag, want := range map[int]string{rpmutils.POSTIN: "useradd", rpmutils.PREUN: "disable --now", rpmutils.POSTUN: "daemon-reload"} {
		if script, err := rpm.Header.GetString(tag); err != nil || !strings.Contains(script, want) {
			t.Errorf("%d: %q, %v", tag, script, err)
		}
	}
}

// The archive is read in both of its forms.
func TestImageIsOne(t *testing.T) {
	b, p := testBuilder(t)
	const name = "kvconnd-1.2.3-image-amd64.tar"
	made := makeAll(t, b, p)[name]
	docker, err := tarball.ImageFromPath(filepath.Join(b.done, name), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(docker); err != nil {
		t.Error(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, tarFS(t, made)); err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	config, err := docker.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := config.Config; config.Architecture != "amd64" || !slices.Equal(c.Entrypoint, []string{"/usr/bin/kvconnd"}) || c.Labels["org.opencontainers.image.revision"] != b.commit {
		t.Errorf("%+v", config)
	}
	modes, data := untar(t, mutate.Extract(docker))
	if modes["usr/bin/kvconnd"] != 0o755 || modes["tmp"] != 0o1777 && modes["tmp/"] != 0o1777 || !strings.Contains(data["etc/ssl/certs/ca-certificates.crt"], "BEGIN CERTIFICATE") || data["usr/share/doc/kvconnd/NOTICES.txt"] != "notices" {
		t.Errorf("%v", modes)
	}
}
