package httplimit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// peers finds out who is at the other end of a connection. It asks the kernel (sock_diag(7)),
// which looks up one socket, however many there are.
type peers struct {
	fd  int // of the netlink socket, -1 if there is none
	own uint32
	seq uint32
	buf [512]byte
}

func newPeers() *peers {
	p := &peers{fd: -1, own: uint32(os.Geteuid())}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return p
	}
	p.fd = fd
	// The answer is there once the question has been sent; a lost one must not stop a server.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		p.close()
	}
	return p
}

func (p *peers) close() {
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
		p.fd = -1
	}
}

// of says who is at the other end of c. It is for one goroutine.
func (p *peers) of(c net.Conn) Client {
	remote, okRemote := c.RemoteAddr().(*net.TCPAddr)
	local, okLocal := c.LocalAddr().(*net.TCPAddr)
	if !okRemote || !okLocal {
		return Client{Name: c.RemoteAddr().String()}
	}
	if uid, err := p.owner(remote.AddrPort(), local.AddrPort()); err == nil {
		return Client{Name: fmt.Sprint("uid ", uid), Trusted: uid == 0 || uid == p.own}
	}
	return addressClient(remote.AddrPort().Addr())
}

// addressClient is the client at an address. An IPv6 subnet is one client, since a machine has
// all of it.
func addressClient(a netip.Addr) Client {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if subnet, err := a.Prefix(64); err == nil {
			return Client{Name: subnet.String()}
		}
	}
	return Client{Name: a.String()}
}

// Offsets and sizes in the structures of linux/inet_diag.h.
const (
	diagRequestBytes = unix.NLMSG_HDRLEN + 56
	diagAnswerBytes  = unix.NLMSG_HDRLEN + 72
	diagSourcePort   = unix.NLMSG_HDRLEN + 8 // of a request
	diagState        = unix.NLMSG_HDRLEN + 1 // of an answer
	diagUID          = unix.NLMSG_HDRLEN + 64
	// diagDestination and the others follow the source port.
	diagDestinationPort, diagSource, diagDestination, diagCookie = 2, 4, 20, 40
)

var errNoOwner = errors.New("no socket of this machine")

// owner returns the user of the socket that is bound to local and connected to remote.
func (p *peers) owner(local, remote netip.AddrPort) (uid uint32, err error) {
	if p.fd < 0 {
		return 0, errNoOwner
	}
	p.seq++
	b := p.buf[:diagRequestBytes]
	clear(b)
	binary.NativeEndian.PutUint32(b, diagRequestBytes)
	binary.NativeEndian.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(b[8:], p.seq)
	b[unix.NLMSG_HDRLEN], b[unix.NLMSG_HDRLEN+1] = unix.AF_INET6, unix.IPPROTO_TCP
	from, to := local.Addr().Unmap(), remote.Addr().Unmap()
	if from.Is4() {
		b[unix.NLMSG_HDRLEN] = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(b[unix.NLMSG_HDRLEN+4:], ^uint32(0)) // in any state
	id := b[diagSourcePort:]
	binary.BigEndian.PutUint16(id, local.Port())
	binary.BigEndian.PutUint16(id[diagDestinationPort:], remote.Port())
	copy(id[diagSource:diagDestination], from.AsSlice())
	copy(id[diagDestination:], to.AsSlice())
	binary.NativeEndian.PutUint64(id[diagCookie:], ^uint64(0)) // none
	if err := unix.Sendto(p.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("ask for the owner of a socket: %w", err)
	}
	return p.answer()
}

// answer reads the answer to the last question.
func (p *peers) answer() (uid uint32, err error) {
	for {
		n, _, err := unix.Recvfrom(p.fd, p.buf[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read the owner of a socket: %w", err)
		}
		b := p.buf[:n]
		switch {
		case n < unix.NLMSG_HDRLEN || binary.NativeEndian.Uint32(b[8:]) != p.seq:
			continue // of a question that was given up
		case n < diagAnswerBytes || binary.NativeEndian.Uint16(b[4:]) != unix.SOCK_DIAG_BY_FAMILY:
			return 0, errNoOwner
		}
		// A socket that its process has closed has no owner.
		if state := b[diagState]; state != unix.BPF_TCP_ESTABLISHED && state != unix.BPF_TCP_CLOSE_WAIT {
			return 0, errNoOwner
		}
		return binary.NativeEndian.Uint32(b[diagUID:]), nil
	}
}
