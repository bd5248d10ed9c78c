package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// tarFS is an archive's files as a file system.
func tarFS(t *testing.T, b []byte) fs.FS {
	t.Helper()
	all := make(fstest.MapFS)
	_, data := untar(t, strings.NewReader(string(b)))
	for name, text := range data {
		if !strings.HasSuffix(name, "/") {
			all[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
		}
	}
	return all
}

// runScript runs a package's script with programs that only write down how they were called.
func runScript(t *testing.T, name string, systemd, user bool, args ...string) (calls string) {
	t.Helper()
	databases := ""
	if user {
		databases = "passwd group"
	}
	return runScriptWith(t, name, systemd, databases, args...)
}

// runScriptWith does the same where the name kvconn is in databases of users and groups.
func runScriptWith(t *testing.T, name string, systemd bool, databases string, args ...string) (calls string) {
	t.Helper()
	dir := t.TempDir()
	script, err := os.ReadFile(filepath.Join("files", name))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	running := filepath.Join(dir, "systemd")
	if systemd {
		if err := os.Mkdir(running, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("script", strings.ReplaceAll(string(script), "/run/systemd/system", running))
	for _, program := range []string{"useradd", "systemctl"} {
		write(program, "#!/bin/sh\necho "+program+` "$@" >>"`+dir+"/calls\"\n")
	}
	write("getent", "#!/bin/sh\ncase ' "+databases+" ' in *\" $1 \"*) exit 0 ;; esac\nexit 2\n")
	cmd := exec.Command("/bin/sh", append([]string{filepath.Join(dir, "script")}, args...)...)
	cmd.Env = []string{"PATH=" + dir}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	log, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(log)
}

func TestScriptsOfThePackages(t *testing.T) {
	const useradd, restart = "useradd --system --user-group --home-dir /var/lib/kvconn --no-create-home --shell ", "systemctl daemon-reload\nsystemctl try-restart kvconnd.service\n"
	if got := runScript(t, "postinstall.sh", true, false, "configure"); !strings.HasPrefix(got, useradd) || !strings.HasSuffix(got, " kvconn\n"+restart) {
		t.Errorf("installed: %q", got)
	}
	// useradd refuses to make a group that is there: for engines, or since a removed user's group had other members.
	if got := runScriptWith(t, "postinstall.sh", false, "group", "configure"); !strings.Contains(got, " --gid kvconn ") || strings.Contains(got, "--user-group") {
		t.Errorf("installed where the group is: %q", got)
	}
	if got := runScript(t, "postinstall.sh", true, true, "configure", "0.0.9-1"); got != restart {
		t.Errorf("upgraded: %q", got)
	}
	if got := runScript(t, "postinstall.sh", false, true, "2"); got != "" {
		t.Errorf("in a container: %q", got)
	}
	for _, last := range []string{"remove", "0"} {
		if got := runScript(t, "preremove.sh", true, true, last); got != "systemctl disable --now kvconnd.service\n" {
			t.Errorf("%s: %q", last, got)
		}
	}
	for _, upgrade := range []string{"upgrade", "1", "deconfigure", ""} {
		if got := runScript(t, "preremove.sh", true, true, upgrade); got != "" {
			t.Errorf("%s: %q: an upgrade stops the daemon", upgrade, got)
		}
	}
	if got := runScript(t, "preremove.sh", false, true, "remove"); got != "" {
		t.Errorf("in a container: %q", got)
	}
	if got := runScript(t, "postremove.sh", true, true, "remove"); got != "systemctl daemon-reload\n" {
		t.Errorf("removed: %q", got)
	}
}
