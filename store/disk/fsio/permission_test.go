package fsio

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// asAnyone calls f as a user who is not root, on real files: only what the kernel asks of a
// user for files changes, and for this thread alone.
func asAnyone(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	const nobody = 65534
	setUser := func(uid uintptr) {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, uid, 0, 0); errno != 0 {
			t.Errorf("setfsuid %d: %v", uid, errno)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	setUser(nobody)
	defer setUser(0)
	f()
}

// lost+found belongs to root and is closed to others. A tree that holds one is measured without
// what is in it; such a directory alone is not measured.
func TestPhysicalBytesPassesByWhatIsClosed(t *testing.T) {
	root := t.TempDir()
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	lost, open := filepath.Join(root, "lost+found"), filepath.Join(root, "open")
	for _, dir := range []string{lost, open} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(lost, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(lost, 0o700) })
	asAnyone(t, func() {
		if _, err := os.ReadDir(lost); !errors.Is(err, unix.EACCES) {
			t.Errorf("list %s: %v", lost, err)
		}
		if n, err := (OS{}).PhysicalBytes(root); n < 1<<20 || n >= 2<<20 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		if _, err := (OS{}).PhysicalBytes(lost); !errors.Is(err, unix.EACCES) {
			t.Errorf("a closed directory: %v", err)
		}
	})
}
