// Package fakecuda builds the stand-in for libcuda (integration/gpu/fakecuda) for the tests of several packages.
package fakecuda

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// Build builds the library in dir and returns its path. root is the repository's.
func Build(root, dir string) (string, error) {
	sources, err := filepath.Glob(filepath.Join(root, "integration/gpu/fakecuda/*.c"))
	if err == nil && len(sources) == 0 {
		err = fmt.Errorf("there are none in %s", root)
	}
	if err != nil {
		return "", fmt.Errorf("sources of the stand-in for libcuda: %w", err)
	}
	library := filepath.Join(dir, "libcuda.so.1")
	args := append([]string{"-std=gnu11", "-O1", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-o", library}, sources...)
	if out, err := exec.Command("gcc", append(args, "-lpthread")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the stand-in for libcuda: %w: %s", err, out)
	}
	return library, nil
}

// Library returns what build has built, once for all tests. It skips the test without a C compiler.
func Library(t testing.TB, build func() (string, error)) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc: the stand-in for libcuda (integration/gpu/fakecuda) cannot be built")
	}
	library, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return library
}
