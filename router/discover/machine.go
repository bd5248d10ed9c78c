package discover

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
)

// machine is the one that this process runs on. Its addresses are asked for once, when they are needed.
type machine struct {
	asked     bool
	addresses []netip.Addr
}

// has says whether an endpoint is on this machine: at localhost, or at one of its own addresses. Other names are not
// resolved.
func (m *machine) has(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil {
		return false
	}
	if u.Hostname() == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return false
	}
	a = a.Unmap()
	return a.IsLoopback() || slices.Contains(m.own(), a.WithZone(""))
}

// own are the addresses of this machine's interfaces; none if the system does not say.
func (m *machine) own() []netip.Addr {
	if m.asked {
		return m.addresses
	}
	m.asked = true
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				m.addresses = append(m.addresses, ip.Unmap())
			}
		}
	}
	return m.addresses
}
