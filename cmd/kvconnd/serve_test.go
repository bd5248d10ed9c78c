package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// servingProcess is `kvconnd serve` as a process of its own.
type servingProcess struct {
	*exec.Cmd
	t    *testing.T
	log  io.ReadCloser
	line *bufio.Scanner
	base string
}

// serveProcess starts one.
func serveProcess(t *testing.T, args ...string) *servingProcess {
	t.Helper()
	base := t.TempDir()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &servingProcess{t: t, base: base, Cmd: exec.Command(executable, append([]string{
		"serve", "--dir", filepath.Join(base, "store"), "--socket", filepath.Join(base, "s"),
		"--http", "off", "--max-bytes", "64MiB", "--host-bytes", "64MiB",
	}, args...)...)}
	p.Env = append(os.Environ(), beKvconnd+"=1")
	if p.log, err = p.StderrPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(time.Minute, func() { _ = p.Process.Kill() })
	t.Cleanup(func() { hung.Stop() })
	p.line = bufio.NewScanner(p.log)
	return p
}

// await reads the log up to a line with a text, and returns the line.
func (p *servingProcess) await(text string) string {
	p.t.Helper()
	for {
		if !p.line.Scan() {
			p.t.Fatalf("the log ends without %q: %v", text, errors.Join(p.line.Err(), p.Wait()))
		}
		if strings.Contains(p.line.Text(), text) {
			return p.line.Text()
		}
	}
}

// stopped ends the process and checks that the end was in order.
func (p *servingProcess) stopped() {
	p.t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		p.t.Errorf("stop: %v", err)
	}
	if _, err := os.Stat(filepath.Join(p.base, "store", "index.snap")); err != nil {
		p.t.Errorf("no snapshot: %v", err)
	}
}

// The log's reader may be gone by then: `kvconnd serve 2>&1 | tee log` and Ctrl-C.
func TestServeStopsInOrderWithoutAReaderOfItsLog(t *testing.T) {
	p := serveProcess(t)
	p.await("msg=ready")
	if err := p.log.Close(); err != nil {
		t.Fatal(err)
	}
	p.stopped()
}

// A daemon that was started from a terminal outlives it.
func TestServeIgnoresHangups(t *testing.T) {
	p := serveProcess(t)
	p.await("msg=ready")
	for range 2 {
		if err := p.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		p.await("SIGHUP")
	}
	p.stopped()
}

// Where programs read the log, its last line is for them too, and times have a unit.
func TestAJSONLogIsJSONToItsEnd(t *testing.T) {
	p := serveProcess(t, "--log-format", "json")
	var opened struct {
		Took *float64 `json:"took_s"`
	}
	if line := p.await("store opened"); json.Unmarshal([]byte(line), &opened) != nil || opened.Took == nil || *opened.Took <= 0 || *opened.Took > 3600 {
		t.Errorf("%s", line)
	}
	p.await(`"ready"`)
	for _, args := range [][]string{
		{"serve", "--dir", filepath.Join(p.base, "other"), "--socket", filepath.Join(p.base, "s"), "--http", "off", "--log-format", "json"},
		{"serve", "--dir", filepath.Join(p.base, "other"), "--host-bytes", "1MB", "--log-format", "json"},
		{"router", "--http", "0.0.0.0:1", "--log-format", "json"},
		{"router", "--http", "127.0.0.1:0", "--policy", "best", "--log-format", "json"},
	} {
		status, _, errs := kvconnd(args...)
		var last struct{ Level, Err string }
		lines := strings.Split(strings.TrimSpace(errs), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || status == 0 || last.Level != "ERROR" || last.Err == "" {
			t.Errorf("%q: status %d, %v\n%s", args, status, err, errs)
		}
	}
	p.stopped()
}
