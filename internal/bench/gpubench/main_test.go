package gpubench

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/kvconn/kvconn/gpu/copier"
	"github.com/kvconn/kvconn/internal/testkit/fakecuda"
)

// roleEnv has this program play a copier.
const roleEnv = "KVCONN_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) == "copier" {
		if err := copier.Run(context.Background(), os.NewFile(3, "control"), os.Exit); err != nil {
			fmt.Fprintln(os.Stderr, "copier:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if fakeDir != "" {
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
		return fakecuda.Build("../../..", fakeDir)
	})
)

// onStandIn are options of a bench on the stand-in, whose copier has settings of its own.
func onStandIn(t testing.TB, env ...string) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Library: fakecuda.Library(t, buildFake),
		Copier:  append(append([]string{"env", "GOTRACEBACK=none", roleEnv + "=copier"}, env...), self),
	}
}
