// Package fakecuda builds the stand-in for libcuda (integration/gpu/fakecuda) for the tests of several packages, or gives
// them a real driver instead.
package fakecuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// RealEnv names a real driver's library, on which tests then run that need no control of the stand-in.
const RealEnv = "KVCONN_CUDA_LIBRARY"

// Build builds the library in dir and returns its path. root is the repository's.
func Build(root, dir string) (string, error) {
	library := filepath.Join(dir, "libcuda.so.1")
	build := filepath.Join(root, "integration/gpu/fakecuda/build.sh")
	if out, err := exec.Command(build, library).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the stand-in for libcuda: %w: %s", err, out)
	}
	return library, nil
}

// Real says whether the tests run on a real driver.
func Real() bool { return os.Getenv(RealEnv) != "" }

// Needs skips a test on a real driver if env sets something of the stand-in.
func Needs(t testing.TB, env ...string) {
	t.Helper()
	for _, setting := range env {
		if Real() && strings.HasPrefix(setting, "FAKECUDA_") {
			t.Skipf("%s: only the stand-in has it, and %s is set", setting, RealEnv)
		}
	}
}

// Library returns the real driver's library, if there is one, and else what build has built, once for all tests. It skips
// the test without a C compiler.
func Library(t testing.TB, build func() (string, error)) string {
	t.Helper()
	if library := os.Getenv(RealEnv); library != "" {
		return library
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc: the stand-in for libcuda (integration/gpu/fakecuda) cannot be built")
	}
	library, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return library
}
