package discover

import (
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/kvconn/kvconn/router/registry"
)

// machine is the one that this process runs on. Its name and addresses are asked for once, when they are needed.
type machine struct {
	asked     bool
	name      string
	addresses []netip.Addr
}

// Localize gives the node of o to the ranks that have none and whose endpoint is on this machine. It returns the ids of those
// that stay without.
func (o *Options) Localize(ranks []registry.Rank) (without []int32) {
	var own machine
	for i := range ranks {
		if o.localize(&ranks[i], &own); ranks[i].Node == "" {
			without = append(without, ranks[i].ID)
		}
	}
	return without
}

func (o *Options) localize(r *registry.Rank, own *machine) {
	if r.Node == "" && o.Node != "" && own.has(r.Endpoint) {
		r.Node, r.NodeURL = o.Node, o.NodeURL
	}
}

// has says whether an endpoint is on this machine: at localhost, its own name or one of its own addresses. Other names are
// not resolved.
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
		m.ask()
		return m.name != "" && strings.EqualFold(u.Hostname(), m.name)
	}
	a = a.Unmap()
	if a.IsLoopback() {
		return true
	}
	m.ask()
	return slices.Contains(m.addresses, a.WithZone(""))
}

// ask finds out the machine's name and the addresses of its interfaces; none if the system does not say.
func (m *machine) ask() {
	if m.asked {
		return
	}
	m.asked = true
	m.name, _ = os.Hostname()
	list, err := net.InterfaceAddrs()
	if err != nil {
		return
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				m.addresses = append(m.addresses, ip.Unmap())
			}
		}
	}
}
