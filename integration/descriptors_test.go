package integration

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/internal/daemon"
)

// nobody is a user of the machine with nothing to do with the daemon.
const nobody = 65534

// holdConnections opens HTTP connections that have been used once and stay open, as user
// nobody if it can, and returns those that the daemon has not closed at once.
func holdConnections(t *testing.T, addr string, n int, asNobody bool) []net.Conn {
	t.Helper()
	conns := make(chan []net.Conn)
	go func() {
		var out []net.Conn
		if asNobody {
			// The thread gets its user back and lives on: with a thread that ends, the system
			// kills the daemons that were started on it.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			_ = unix.Setfsuid(nobody)
			defer func() { _ = unix.Setfsuid(os.Getuid()) }()
		}
		for range n {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				continue
			}
			_, err = io.WriteString(c, "GET /readyz HTTP/1.1\r\nHost: kvconn\r\n\r\n")
			if err == nil {
				_, err = c.Read(make([]byte, 4096))
			}
			if err != nil {
				_ = c.Close()
				continue
			}
			out = append(out, c)
		}
		conns <- out
	}()
	out := <-conns
	t.Cleanup(func() {
		for _, c := range out {
			_ = c.Close()
		}
	})
	return out
}

// Defect 10: HTTP connections without end, of any user of the machine, take no descriptors
// from engines and the store, and cost others no answer.
func TestIdleHTTPConnectionsStarveNobody(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	cmd := n.command()
	n.launch(exec.Command("sh", append([]string{"-c", `ulimit -n 300 && exec "$0" "$@"`}, cmd.Args...)...))
	n.waitReady()
	info, err := daemon.ReadInfo(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	users := []bool{false}
	if os.Getuid() == 0 {
		users = []bool{true, false}
	}
	round := 0
	for _, asNobody := range users {
		held := holdConnections(t, info.HTTP, 400, asNobody)
		if c := descriptors(t, n.cmd.Process.Pid); c["socket"] > 100 {
			t.Errorf("as nobody %t: the daemon holds %v", asNobody, c)
		}
		round++
		e := newInstance(t, n, nil) // the engine socket answers
		ps := prompts(60+round, 3)
		before := n.status().Store.Writes
		want := e.run("while they are held", ps)
		n.saved()
		if s := n.status(); s.Store.Writes == before || s.HTTP.Connections > 300/8 {
			t.Errorf("as nobody %t: %d records written, %d HTTP connections", asNobody, s.Store.Writes-before, s.HTTP.Connections)
		}
		same(t, "while they are held", e.run("again", ps), want)
		e.close()
		for _, c := range held {
			_ = c.Close()
		}
		if got := get(t, "http://"+info.HTTP+"/readyz"); !strings.Contains(got, "true") {
			t.Errorf("after they have gone: %s", got)
		}
		http.DefaultClient.CloseIdleConnections()
	}
	if strings.Contains(n.log.String(), "too many open files") {
		t.Error("descriptors ran out")
	}
	if !strings.Contains(n.log.String(), "the limit on open files may be too small") {
		t.Error("nothing is said of the limit")
	}
	n.stop()
}
