package config

import (
	"os"
	"path/filepath"
	"testing"
)

// Without the variable of a login a user still has a folder of its own, and never one that others can reach.
func TestTheDefaultSocketLiesInAFolderOfTheUser(t *testing.T) {
	base := t.TempDir()
	folder := func(name string, mode os.FileMode) string {
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	own, shared, none := folder("own", 0o700), folder("shared", 0o755), filepath.Join(base, "none")
	uid := os.Getuid()
	if uid == 0 {
		uid = 1234 // root's is that of the system, whoever else it is
		if err := os.Chown(own, uid, uid); err != nil {
			t.Skip(err)
		}
	}
	for _, c := range []struct {
		uid                         int
		runtime, user, system, want string
	}{
		{0, "/run/user/0", own, none, none},
		{uid, "/x", own, none, "/x/kvconn"},
		{uid, "", own, none, own + "/kvconn"},
		{uid, "", own, shared, shared}, // this process may write there
		{uid, "", shared, none, none},
		{uid + 1, "", own, none, none},
		{uid, "", none, none, none},
	} {
		if got := socketDir(c.uid, c.runtime, c.user, c.system); got != c.want {
			t.Errorf("user %d with %q, %q and %q: %q, want %q", c.uid, c.runtime, c.user, c.system, got, c.want)
		}
	}
}
