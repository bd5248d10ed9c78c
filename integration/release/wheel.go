package main

import (
	"context"
	"fmt"
	"path/filepath"
)

// wheel makes the Python distribution with the daemon in it.
func (b *builder) wheel(ctx context.Context, p *program) error {
	machine, err := machine(p.arch)
	if err != nil {
		return err
	}
	constraints := filepath.Join(b.root, "integration/release/build-constraints.txt")
	env := []string{
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.at.Unix()),
		"KVCONN_WHEEL_DAEMON=" + p.path,
		// Any glibc since 2012 will do: checkLinking sees to it.
		"KVCONN_WHEEL_PLATFORM=manylinux_2_17_" + machine,
		// Old and new releases of pip have different names for it.
		"PIP_CONSTRAINT=" + constraints, "PIP_BUILD_CONSTRAINT=" + constraints,
	}
	_, err = b.output(ctx, env, b.python, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--wheel-dir", b.done, "integration/python")
	return err
}

// machine is what an architecture is called by Python and the kernel.
func machine(arch string) (string, error) {
	switch arch {
	case "amd64":
		return "x86_64", nil
	case "arm64":
		return "aarch64", nil
	}
	return "", fmt.Errorf("no wheel for %s", arch)
}
