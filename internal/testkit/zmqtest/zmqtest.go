// Package zmqtest runs Python programs that use libzmq, ZeroMQ's reference implementation, as the other side
// of tests.
package zmqtest

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// PythonEnv names a Python interpreter that has the package zmq, as Debian's python3-zmq gives it to
// /usr/bin/python3.
const PythonEnv = "KVCONN_TEST_PYZMQ_PYTHON"

// Program is a running Python program that reads and writes lines.
type Program struct {
	t   testing.TB
	in  io.Writer
	out *bufio.Scanner
}

// python is an interpreter with libzmq, empty if there is none. Looking for it takes longer than most tests.
var python = sync.OnceValue(func() string {
	if p := os.Getenv(PythonEnv); p != "" {
		return p
	}
	for _, p := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(p, "-c", "import zmq").Run() == nil {
			return p
		}
	}
	return ""
})

// Start runs a script until the test ends. Without libzmq it skips the test.
func Start(t testing.TB, script string, args ...string) *Program {
	t.Helper()
	if python() == "" {
		t.Skipf("no python3 with the package zmq (Debian: python3-zmq); set %s to one", PythonEnv)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, python(), append([]string{script}, args...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // killed
	})
	s := bufio.NewScanner(out)
	s.Buffer(nil, 64<<20)
	return &Program{t: t, in: in, out: s}
}

// Send gives the program a line.
func (p *Program) Send(words ...string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, strings.Join(words, " ")+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// Line waits for the program's next line and returns its words.
func (p *Program) Line() []string {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("the program has ended: %v", p.out.Err())
	}
	return strings.Split(p.out.Text(), " ")
}
