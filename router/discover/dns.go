package discover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
)

// Resolver finds the addresses of a name; network is "ip4" or "ip6". [net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

const (
	// lookupTimeout bounds one look-up.
	lookupTimeout = 5 * time.Second
	// emptyAfter is how long a name has to be unknown before that counts as a list without engines. A name server that
	// starts, or is asked through a broken path, also says that a name is unknown.
	emptyAfter = time.Minute
)

// watchDNS resolves a name again and again.
func watchDNS(ctx context.Context, s *Source, resolver Resolver, to sink) {
	var unknownSince time.Time
	for {
		found, err := lookUp(ctx, resolver, s.DNS)
		missing := new(net.DNSError)
		switch now := time.Now(); {
		case err == nil:
			unknownSince = time.Time{}
			places := make([]place, len(found))
			for i, a := range found {
				places[i].address = a.String()
			}
			to.found(s.expandAll(places))
		case errors.As(err, &missing) && missing.IsNotFound:
			if unknownSince.IsZero() {
				unknownSince = now
			}
			if now.Sub(unknownSince) >= emptyAfter {
				to.found(nil, err)
			} else {
				to.failed(err)
			}
		default:
			unknownSince = time.Time{}
			to.failed(err)
		}
		if !sleep.For(ctx, time.Duration(s.Interval), nil) {
			return
		}
	}
}

// lookUp returns a name's addresses, sorted. An engine that has addresses of both families is one: only if there are no IPv4
// addresses, the others count. The families are asked for one by one: of a question for both, a resolver may answer with the
// one that it got, and every engine would seem to have moved.
func lookUp(ctx context.Context, resolver Resolver, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := resolver.LookupNetIP(ctx, "ip4", name)
	if missing := new(net.DNSError); len(found) == 0 && (err == nil || errors.As(err, &missing) && missing.IsNotFound) {
		found, err = resolver.LookupNetIP(ctx, "ip6", name)
	}
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", name, err)
	}
	for i := range found {
		found[i] = found[i].Unmap()
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found), nil
}
