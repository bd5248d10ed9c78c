package cuda

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu/copier"
	"github.com/kvconn/kvconn/gpu/region"
	"github.com/kvconn/kvconn/internal/testkit/fakecuda"
)

// deafEnv has a copier of the tests outlive its daemon: as if its end took time.
const deafEnv = "KVCONN_TEST_DEAF"

// daemonMain is a daemon whose engine has the other end of descriptor 3, and memory that descriptor 4 describes. It says
// which process copies for it, and lives until it is killed.
func daemonMain() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d, err := New(Options{
		Library: os.Getenv("KVCONN_TEST_LIBRARY"),
		Command: []string{"env", roleEnv + "=copier", deafEnv + "=1", self},
	})
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("arena", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	arena := os.NewFile(uintptr(fd), "arena")
	if err := arena.Truncate(testArenaBytes); err != nil {
		return err
	}
	mem, err := unix.Mmap(fd, 0, testArenaBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	if _, err := d.PinHost(arena, mem); err != nil {
		return err
	}
	connection := os.NewFile(3, "connection")
	if _, err := d.OpenHolding([]*os.File{os.NewFile(4, "region")}, connection); err != nil {
		return err
	}
	for _, g := range d.gpus {
		fmt.Println(g.current.cmd.Process.Pid)
	}
	select {}
}

// atEOF reports whether the other end of a socket, and all its duplicates, are closed.
func atEOF(t *testing.T, fd int) bool {
	t.Helper()
	n, _, err := unix.Recvfrom(fd, make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false
	case err != nil && !errors.Is(err, unix.ECONNRESET):
		t.Fatal(err)
	}
	return n <= 0
}

// filesOf lists the descriptors of a process whose links begin like that.
func filesOf(t *testing.T, pid int, link string) (fds []int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || !strings.HasPrefix(target, link) {
			continue
		}
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	return fds
}

// The engine takes the end of its connection for the proof that nobody copies. A daemon that is killed does not end its
// copier at once.
func TestTheConnectionOfAKilledDaemonEndsWithItsCopier(t *testing.T) {
	library, e := fakeLibrary(t), startEngine(t, 0)
	files := e.region(region.IPC, granularity)
	ours, theirs := pair(t)
	command := asRole(t, "daemon", "KVCONN_TEST_LIBRARY="+library)
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.ExtraFiles, cmd.Stderr = append([]*os.File{theirs}, files...), os.Stderr
	var peer unix.Stat_t
	if err := unix.Fstat(int(theirs.Fd()), &peer); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	copier.CloseAll([]*os.File{theirs})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(pid, unix.SIGKILL) }()
	// The kernel closes the files of a process that was killed from the highest number down.
	driver := "/memfd:fakecuda"
	if fakecuda.Real() && !strings.Contains(library, "fakecuda") {
		driver = "/dev/nvidia"
	}
	device, connection := filesOf(t, pid, driver), filesOf(t, pid, fmt.Sprintf("socket:[%d]", peer.Ino))
	if len(device) == 0 || len(connection) != 1 || connection[0] > slices.Min(device) {
		t.Errorf("the engine's connection is descriptor %d, and the driver's are %d: it is closed before they are", connection, device)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // with it all that it held is closed
	if atEOF(t, int(ours.Fd())) {
		t.Error("the connection has ended before the copier")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal("the copier has ended with its daemon, so the test shows nothing: ", err)
	}
	awaitTrue(t, "the connection ends", func() bool { return atEOF(t, int(ours.Fd())) })
}
