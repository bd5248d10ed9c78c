package cuda

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu/copier"
	"github.com/kvconn/kvconn/internal/testkit/fakecuda"
)

// roleEnv has this program play another process: an engine, or a copier.
const roleEnv = "KVCONN_TEST_ROLE"

// A signal at the parent's death is a thread's. The first thread runs this, and is kept.
func init() {
	if os.Getenv(roleEnv) == "copier" && os.Getenv(deafEnv) != "" {
		runtime.LockOSThread()
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0)
	}
}

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "daemon":
		if err := daemonMain(); err != nil {
			fmt.Fprintln(os.Stderr, "daemon:", err)
			os.Exit(1)
		}
	case "copier":
		if os.Getenv(deafEnv) != "" {
			_ = copier.Run(context.Background(), os.NewFile(3, "control"), func(int) { select {} })
			time.Sleep(time.Hour)
		}
		if err := copier.Run(context.Background(), os.NewFile(3, "control"), os.Exit); err != nil {
			fmt.Fprintln(os.Stderr, "copier:", err)
			os.Exit(1)
		}
		os.Exit(0)
	case "upgraded":
		if err := upgradedMain(); err != nil {
			fmt.Fprintln(os.Stderr, "upgraded daemon:", err)
			os.Exit(1)
		}
		os.Exit(0)
	case "engine":
		if err := engineMain(os.NewFile(3, "control")); err != nil {
			fmt.Fprintln(os.Stderr, "engine:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if fakeDir != "" {
		if err := withoutFaults(filepath.Join(fakeDir, "called")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		_ = os.RemoveAll(fakeDir)
	}
	os.Exit(code)
}

// buildFake builds the stand-in for libcuda, once for all tests, in fakeDir.
var (
	fakeDir   string
	buildFake = sync.OnceValues(func() (_ string, err error) {
		if fakeDir, err = os.MkdirTemp("", "kvconn-fakecuda-"); err != nil {
			return "", err
		}
		return fakecuda.Build("../..", fakeDir)
	})
)

// fakeLibrary is the stand-in for libcuda.
func fakeLibrary(t testing.TB) string {
	t.Helper()
	return fakecuda.Library(t, buildFake)
}

// asRole is a command that has this program play a role, with settings of the stand-in.
func asRole(t testing.TB, role string, env ...string) []string {
	t.Helper()
	fakecuda.Needs(t, env...)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return append(append([]string{"env", "GOTRACEBACK=none", roleEnv + "=" + role}, env...), self)
}
