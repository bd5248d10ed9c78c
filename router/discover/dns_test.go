package discover

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// nameServer answers for engines.test. over UDP.
type nameServer struct {
	t    *testing.T
	conn net.PacketConn

	mu    sync.Mutex
	code  dnsmessage.RCode
	fails dnsmessage.Type // the type that it cannot answer for, if not 0
	addrs []netip.Addr
	deaf  bool
}

func newNameServer(t *testing.T, addrs ...string) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{t: t, conn: conn}
	s.set(dnsmessage.RCodeSuccess, addrs...)
	done := make(chan struct{})
	go func() { defer close(done); s.serve() }()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return s
}

func (s *nameServer) set(code dnsmessage.RCode, addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code, s.addrs = code, nil
	for _, a := range addrs {
		s.addrs = append(s.addrs, netip.MustParseAddr(a))
	}
}

func (s *nameServer) serve() {
	b := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(b)
		if err != nil {
			return
		}
		var query dnsmessage.Message
		if query.Unpack(b[:n]) != nil || len(query.Questions) != 1 {
			continue
		}
		if out, err := s.answer(&query); err == nil && out != nil {
			_, _ = s.conn.WriteTo(out, from)
		}
	}
}

func (s *nameServer) answer(query *dnsmessage.Message) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deaf {
		return nil, nil
	}
	q := query.Questions[0]
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: query.ID, Response: true, Authoritative: true, RCode: s.code}, Questions: query.Questions}
	if s.fails == q.Type {
		m.RCode = dnsmessage.RCodeServerFailure
		return m.Pack()
	}
	if q.Name.String() != "engines.test." {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range s.addrs {
		h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 5}
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	return m.Pack()
}

// resolver is the default one, but asks this server.
func (s *nameServer) resolver() Resolver {
	var o Options
	o.EnsureDefaults()
	r := o.Resolver.(*net.Resolver)
	if r == net.DefaultResolver {
		r = new(net.Resolver)
	}
	r.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", s.conn.LocalAddr().String())
	}
	return r
}

func dnsSource(t *testing.T) Source {
	return Source{DNS: "engines.test.", Interval: fast, Rank: template(t, map[string]any{
		"model": "m", "endpoint": "http://{address}:8000", "node": "{address}", "node_url": "http://{address}:9477",
	})}
}

func TestTheAddressesOfANameAreRanks(t *testing.T) {
	s := newNameServer(t, "10.0.0.2", "10.0.0.1")
	f := discover(t, func(o *Options) { o.Resolver = s.resolver() }, dnsSource(t))
	f.wants("http://10.0.0.1:8000", "http://10.0.0.2:8000")
	for _, r := range f.Ranks() {
		if r.NodeURL == "" || r.Node == "" {
			t.Errorf("%+v", r.Rank)
		}
	}
	s.set(dnsmessage.RCodeSuccess, "10.0.0.2", "10.0.0.3", "fd00::3") // an engine with two families is one
	f.wants("http://10.0.0.2:8000", "http://10.0.0.3:8000")
	s.set(dnsmessage.RCodeSuccess, "fd00::3")
	f.wants("http://[fd00::3]:8000")
}

// A name server that fails or knows nothing takes no ranks away.
func TestANameServerThatFailsKeepsTheRanks(t *testing.T) {
	s := newNameServer(t, "10.0.0.1")
	f := discover(t, func(o *Options) { o.Resolver = s.resolver() }, dnsSource(t))
	f.wants("http://10.0.0.1:8000")
	for _, code := range []dnsmessage.RCode{dnsmessage.RCodeServerFailure, dnsmessage.RCodeNameError, dnsmessage.RCodeRefused, dnsmessage.RCodeSuccess} {
		s.set(code) // without addresses
		f.fails(2)
		f.wants("http://10.0.0.1:8000")
	}
	s.set(dnsmessage.RCodeSuccess, "10.0.0.9")
	f.wants("http://10.0.0.9:8000")
	wait.For(t, "no failing source", func() bool { return f.Discovery.Stats().Failing == 0 })
	s.mu.Lock()
	s.deaf = true
	s.mu.Unlock()
	f.fails(1)
	f.wants("http://10.0.0.9:8000")
}

// A name server that fails for one family only has not said that there are no addresses of it.
func TestAPartOfTheAddressesIsNoList(t *testing.T) {
	s := newNameServer(t, "10.0.0.1", "fd00::1")
	f := discover(t, func(o *Options) { o.Resolver = s.resolver() }, dnsSource(t))
	f.wants("http://10.0.0.1:8000")
	s.mu.Lock()
	s.fails = dnsmessage.TypeA
	s.mu.Unlock()
	f.fails(2)
	f.wants("http://10.0.0.1:8000")
	s.mu.Lock()
	s.fails = dnsmessage.TypeAAAA // which is not needed
	s.mu.Unlock()
	s.set(dnsmessage.RCodeSuccess, "10.0.0.2", "fd00::2")
	f.wants("http://10.0.0.2:8000")
	wait.For(t, "no failing source", func() bool { return f.Discovery.Stats().Failing == 0 })
	s.set(dnsmessage.RCodeSuccess)
	f.fails(2)
	f.wants("http://10.0.0.2:8000")
}

// resolverFunc is a [Resolver].
type resolverFunc func() ([]netip.Addr, error)

func (f resolverFunc) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) { return f() }

// A name that stays unknown has no engines.
func TestANameThatStaysUnknownHasNoRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := dnsSource(t)
		s.EnsureDefaults()
		ctx, cancel := context.WithCancel(t.Context())
		to := sink{ctx: ctx, to: make(chan<- report)}
		reports := make(chan report)
		to.to = reports
		go watchDNS(ctx, &s, resolverFunc(func() ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "no such host", Name: s.DNS, IsNotFound: true}
		}), to)
		for start := time.Now(); ; {
			r := <-reports
			if r.err == nil {
				t.Fatal("an unknown name is no error")
			}
			if !r.listed {
				continue
			}
			if after := time.Since(start); len(r.ranks) != 0 || after < emptyAfter || after > emptyAfter+time.Second {
				t.Errorf("%d ranks after %s", len(r.ranks), after)
			}
			break
		}
		cancel()
	})
}
