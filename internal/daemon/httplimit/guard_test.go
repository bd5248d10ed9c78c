package httplimit

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
)

func TestNeitherOneClientNorAllStrangersTakeEverything(t *testing.T) {
	s := NewShares(64)
	take := func(c Client) (n int) {
		for s.Take(c) {
			n++
		}
		return n
	}
	strangers := 0
	for i := range 5 {
		n := take(Client{Name: fmt.Sprint("uid ", i+1000)})
		if i < 3 && n != 16 {
			t.Errorf("client %d has %d", i, n)
		}
		strangers += n
	}
	if own := take(Client{Name: "uid 0", Trusted: true}); strangers != 48 || own != 16 || s.Taken() != 64 {
		t.Errorf("%d for strangers, %d for the trusted, %d taken", strangers, own, s.Taken())
	}
	s.Give(Client{Name: "uid 1000"})
	if take(Client{Name: "uid 1001"}) != 0 || take(Client{Name: "uid 1000"}) != 1 {
		t.Error("what was given back is not its client's")
	}
	if tiny := NewShares(1); !tiny.Take(Client{Name: "x"}) || tiny.Take(Client{Name: "y"}) {
		t.Error("a share of one")
	}
}

// needOwners skips where the system does not say whose a connection is: all users of a
// machine are one client there.
func needOwners(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	p := newPeers()
	defer p.close()
	if _, err := p.owner(c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()); err != nil {
		t.Skipf("no sock_diag(7) here: %v", err)
	}
}

// guarded serves one handler, and returns its address.
func guarded(t *testing.T, most int, h http.Handler) (*Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(l, most, h, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() { ended <- s.server.Serve(s.listener) }()
	t.Cleanup(func() {
		_ = s.server.Close()
		<-ended
		if open, _ := s.Stats(); open != 0 {
			t.Errorf("%d connections are still counted", open)
		}
	})
	return s, l.Addr().String()
}

// Defect 10: connections that are left open, however many, cost nobody an answer.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	needOwners(t)
	const most = 8
	g, addr := guarded(t, most, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, ClientOf(r).Name)
	}))
	for range 10 * most {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	resp, err := new(http.Client).Get("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if want := fmt.Sprint("uid ", os.Getuid()); err != nil || resp.StatusCode != http.StatusOK || string(b) != want {
		t.Errorf("%s %q, %v; want %q", resp.Status, b, err, want)
	}
	if open, _ := g.Stats(); open > most {
		t.Errorf("%d connections of %d", open, most)
	}
}

// Connections that are in use are not closed for others: these are told to come back.
func TestWhoFindsNoRoomIsToldSo(t *testing.T) {
	needOwners(t)
	const most = 8
	entered, leave := make(chan struct{}), make(chan struct{})
	g, addr := guarded(t, most, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-leave
	}))
	defer close(leave)
	for range most / 2 { // the share of the process's own user
		go func() {
			if resp, err := http.Get("http://" + addr); err == nil {
				_ = resp.Body.Close()
			}
		}()
		<-entered
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	b, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 503 ") || !strings.HasSuffix(string(b), "too many connections\n") {
		t.Errorf("%q, %v", b, err)
	}
	if open, refused := g.Stats(); open != most/2 || refused != 1 {
		t.Errorf("%d open, %d refused", open, refused)
	}
}

func TestRemoteClientsAreTheirAddresses(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8:1:2:3::4": "2001:db8:1:2::/64",
	} {
		if got := addressClient(netip.MustParseAddr(addr)); got != (Client{Name: want}) {
			t.Errorf("%s is %+v, want %s", addr, got, want)
		}
	}
	p := newPeers()
	defer p.close()
	a, b := netip.MustParseAddrPort("192.0.2.7:1"), netip.MustParseAddrPort("192.0.2.8:2")
	if uid, err := p.owner(a, b); err == nil {
		t.Errorf("a connection of others belongs to user %d", uid)
	}
}

// A timeout of the whole request would end streams that take longer than it.
func TestHTTPRequestsAreBoundedAndAnswersMayLast(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(l, 4, http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	defer func() { _ = s.Close() }()
	if s.server.ReadHeaderTimeout <= 0 || s.server.IdleTimeout <= 0 || s.server.MaxHeaderBytes <= 0 || s.server.ReadTimeout != 0 || s.server.WriteTimeout != 0 {
		t.Errorf("%+v", s.server)
	}
}
