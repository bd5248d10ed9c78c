package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The log's reader may be gone by then: `kvconnd serve 2>&1 | tee log` and Ctrl-C.
func TestServeStopsInOrderWithoutAReaderOfItsLog(t *testing.T) {
	base := t.TempDir()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executable, "serve", "--dir", filepath.Join(base, "store"), "--socket", filepath.Join(base, "s"),
		"--http", "off", "--max-bytes", "64MiB", "--host-bytes", "64MiB")
	cmd.Env = append(os.Environ(), beKvconnd+"=1")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	for lines := bufio.NewScanner(log); ; {
		if !lines.Scan() {
			t.Fatalf("the daemon is not ready: %v", errors.Join(lines.Err(), cmd.Wait()))
		}
		if strings.Contains(lines.Text(), "msg=ready") {
			break
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if _, err := os.Stat(filepath.Join(base, "store", "index.snap")); err != nil {
		t.Errorf("no snapshot: %v", err)
	}
}
