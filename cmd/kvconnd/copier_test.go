package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/gpu/copier"
)

// A service manager sends its signal to all processes of the service. Copiers must serve until the daemon, which writes
// what was saved first, hangs up.
func TestACopierOutlivesTheSignalsThatAreTheDaemons(t *testing.T) {
	ours, theirs, err := copier.Pair()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := copier.NewConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "copier", "GPU-of-nobody")
	cmd.Env, cmd.ExtraFiles, cmd.Stderr = append(os.Environ(), beKvconnd+"=1"), []*os.File{theirs}, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	ask := func() {
		t.Helper()
		var r copier.Reply
		if err := conn.Send(&copier.Request{Op: copier.Close}); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Receive(&r); err != nil || !strings.Contains(r.Error, "cannot be done now") {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	ask() // it runs
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGTERM, os.Interrupt, syscall.SIGTERM} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		ask()
	}
	_ = conn.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
