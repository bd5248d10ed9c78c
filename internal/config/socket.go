package config

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// systemDir is the folder of the socket of a daemon that runs for a whole node.
const systemDir = "/run/kvconn"

// DefaultSocket is the socket of daemon and engines if no other is set: below $XDG_RUNTIME_DIR; without that in /run/kvconn,
// if this user is root or may write there, or else in the user's folder below /run/user, if there is one.
func DefaultSocket() string {
	uid := os.Getuid()
	return filepath.Join(socketDir(uid, os.Getenv("XDG_RUNTIME_DIR"), "/run/user/"+strconv.Itoa(uid), systemDir), "kvconnd.sock")
}

// socketDir is the folder of a user's socket. user is the folder that the system makes at a login: sudo and containers
// lose the variable that names it. No folder that others could make first is taken, such as one in /tmp: whoever makes it could
// read the prompts of engines.
func socketDir(uid int, runtime, user, system string) string {
	switch {
	case uid == 0:
		return system
	case runtime != "":
		return filepath.Join(runtime, "kvconn")
	case unix.Access(system, unix.W_OK) == nil:
		return system
	case ownDir(user, uid):
		return filepath.Join(user, "kvconn")
	}
	return system
}

// ownDir reports whether a folder is a user's alone.
func ownDir(dir string, uid int) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == uid
}
