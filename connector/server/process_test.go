package server

import (
	"os"
	"os/exec"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// self runs this test binary again, as one of the helpers below.
func self(t *testing.T, helper, socket string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestHelper"+helper+"$")
	cmd.Env = append(os.Environ(), "KVCONN_TEST_HELPER="+socket)
	return cmd
}

func helperSocket(t *testing.T) string {
	t.Helper()
	socket := os.Getenv("KVCONN_TEST_HELPER")
	if socket == "" {
		t.Skip("part of another test")
	}
	return socket
}

// nobody is a user id that is neither root nor the test's.
const nobody = 65534

func TestOtherUsersAreRefused(t *testing.T) {
	s, socket := start(t, Options{}, newEcho())
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := asNobody(t, "OtherUser", socket); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := s.Stats().Refused; n != 1 {
		t.Errorf("%d connections refused, want 1", n)
	}
}

func TestHelperOtherUser(t *testing.T) {
	_, conn := dial(t, helperSocket(t))
	wantClosed(t, conn)
}

// A child that an engine forked keeps the socket open when the engine has died.
func TestDeadEngineIsNoticedWhileItsChildHoldsTheSocket(t *testing.T) {
	b := newEcho()
	s, socket := start(t, Options{}, b)
	out, err := self(t, "EngineWithChild", socket).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	<-b.closed
	wait.For(t, "connections end", func() bool { return s.Stats().Connections <= 0 })
	if err := os.Remove(socket + ".child"); err != nil { // ends the child
		t.Error(err)
	}
}

// The engine connects, starts a child that inherits the socket, and ends. The child ends
// when the test removes its file.
func TestHelperEngineWithChild(t *testing.T) {
	socket := helperSocket(t)
	raw, conn := dial(t, socket)
	greet(t, conn, hello(t))
	f, err := raw.File()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(socket+".child", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sh", "-c", `while [ -e "$0" ]; do sleep 0.05; done`, socket+".child")
	child.ExtraFiles = []*os.File{f}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	os.Exit(0) // without closing: only the process's end may tell
}
