package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// socketDir is a short path: a socket's is bounded.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kvconn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// leaveStale leaves the socket of a daemon that has died at path.
func leaveStale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
}

// Nobody can connect to a socket that is only reserved, and nobody else can have it.
func TestAReservedSocketIsNotThereYet(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	for _, stale := range []bool{false, true} {
		if stale {
			leaveStale(t, path)
		}
		l, err := Reserve(t.Context(), path, Access{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := net.Dial("unix", path); err == nil {
			t.Error("it is there before it is published")
		}
		if _, err := Reserve(t.Context(), path, Access{}); !errors.Is(err, ErrSocketInUse) {
			t.Errorf("another reserves it, too: %v", err)
		}
		if err := l.Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}
	l, err := Reserve(t.Context(), path, Access{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 || left[0].Name() != "s.lock" {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// A daemon that was killed while it opened left the socket that it had reserved, one at each
// start.
func TestReservedSocketsOfTheDeadAreRemoved(t *testing.T) {
	dir := socketDir(t)
	path := filepath.Join(dir, "s")
	for _, name := range []string{"s.abc", "s.x0z", "s.abcd", "s.two", "t.abc"} {
		leaveStale(t, filepath.Join(dir, name))
	}
	// Another daemon's path, and what is no socket.
	for _, name := range []string{"s.two.lock", "s.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("t.abc", filepath.Join(dir, "s.lnk")); err != nil {
		t.Fatal(err)
	}
	// Something alive that no stream can be connected to.
	datagrams, err := net.ListenPacket("unixgram", filepath.Join(dir, "s.dgm"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = datagrams.Close() }()
	live, err := net.Listen("unix", filepath.Join(dir, "s.new"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = live.Close() }()
	l, err := Reserve(t.Context(), path, Access{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	want := []string{"s", "s.abcd", "s.dgm", "s.lnk", "s.lock", "s.new", "s.two", "s.two.lock", "s.txt", "t.abc"}
	if !slices.Equal(names, want) {
		t.Errorf("there are %q, want %q", names, want)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// Defect 18: of daemons that start at one time on one path exactly one serves, and engines
// reach it.
func TestOneOfManyStartersGetsTheSocket(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	for round := range 60 {
		if round%2 == 0 {
			leaveStale(t, path)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		var winners []*Listener
		begin := make(chan struct{})
		for range 8 {
			wg.Go(func() {
				<-begin
				l, err := Listen(context.Background(), path)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					winners = append(winners, l)
				case !errors.Is(err, ErrSocketInUse):
					t.Errorf("round %d: %v, want ErrSocketInUse", round, err)
				}
			})
		}
		close(begin)
		wg.Wait()
		if len(winners) != 1 {
			t.Fatalf("round %d: %d of 8 starters listen", round, len(winners))
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("round %d: nobody can connect: %v", round, err)
		}
		_ = c.Close()
		if err := winners[0].Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 || left[0].Name() != "s.lock" {
		t.Errorf("%v, %v is left; want the lock alone", left, err)
	}
}

// Defect 18 with processes: the winner is killed.
func TestOneOfManyProcessesGetsTheSocket(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	for round := range 3 {
		type starter struct {
			in  io.WriteCloser
			out *bufio.Reader
			end func() error
		}
		var all []starter
		for range 5 {
			cmd := self(t, "Listener", path)
			in, inErr := cmd.StdinPipe()
			out, outErr := cmd.StdoutPipe()
			if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
				t.Fatal(err)
			}
			all = append(all, starter{in, bufio.NewReader(out), cmd.Wait})
		}
		winners := 0
		for _, s := range all {
			line, err := s.out.ReadString('\n')
			switch strings.TrimSpace(line) {
			case "listens":
				winners++
			case "in use":
			default:
				t.Errorf("round %d: %q, %v", round, line, err)
			}
		}
		if winners != 1 {
			t.Errorf("round %d: %d of %d processes listen", round, winners, len(all))
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("round %d: nobody can connect: %v", round, err)
		}
		_ = c.Close()
		for _, s := range all {
			_ = s.in.Close()
			if err := s.end(); err != nil {
				t.Error(err)
			}
		}
	}
}

// The helper listens until its input ends, and then dies without closing anything.
func TestHelperListener(t *testing.T) {
	l, err := Listen(t.Context(), helperSocket(t))
	switch {
	case err == nil:
		fmt.Println("listens")
	case errors.Is(err, ErrSocketInUse):
		fmt.Println("in use")
	default:
		fmt.Println(err)
	}
	_, _ = io.ReadAll(os.Stdin)
	runtime.KeepAlive(l)
	os.Exit(0)
}

func TestDaemonWithoutTheLockIsNotReplaced(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Close() }()
	if _, err := Listen(t.Context(), path); !errors.Is(err, ErrSocketInUse) {
		t.Errorf("%v, want ErrSocketInUse", err)
	}
}

// A lock on a file that was removed is no lock: the next daemon makes another file.
func TestRemovedLockFileDoesNotLetTwoIn(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if locked, err := tryLock(f); locked || err != nil {
		t.Errorf("tryLock of a removed file = %v, %v", locked, err)
	}
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(l.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("the lock is not held: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// A daemon that closes late must not take its successor's socket away.
func TestCloseLeavesASuccessorsSocket(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	leaveStale(t, path)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other socket is gone: %v", err)
	}
}

// A process that is being started has copies of all descriptors for a moment.
func TestSocketIsFreeThoughTheLocksDescriptorWasCopied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Reserve(t.Context(), path, Access{})
	if err != nil {
		t.Fatal(err)
	}
	duplicate, err := unix.Dup(int(l.lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(duplicate) }()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = Reserve(t.Context(), path, Access{}); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
