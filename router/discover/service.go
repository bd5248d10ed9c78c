package discover

import (
	"cmp"
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/kvconn/kvconn/internal/sleep"
)

// services joins what is known of a service of engines and of that of the nodes' daemons.
type services struct {
	source *Source
	to     sink

	mu             sync.Mutex
	engines        []endpointAt
	listed, nodes  bool
	daemons        map[string]string // URL by node; the last one that was known
	known          map[string]bool   // addresses that have been ready
	failedE, failD error
}

// endpointAt is an endpoint with its one address.
type endpointAt struct {
	endpoint
	address string
}

// watchService follows a service's EndpointSlices.
func watchService(ctx context.Context, s *Source, cluster *Cluster, to sink) {
	own := ""
	for s.Namespace == "" || s.Daemons != "" && s.DaemonsNamespace == "" {
		var err error
		if own, err = cluster.namespace(); err == nil {
			break
		}
		to.failed(err)
		if !sleep.For(ctx, cluster.Pause, nil) {
			return
		}
	}
	w := &services{source: s, to: to, daemons: make(map[string]string), known: make(map[string]bool), nodes: s.Daemons == ""}
	var running sync.WaitGroup
	if s.Daemons != "" {
		f := &follower{cluster: cluster, namespace: cmp.Or(s.DaemonsNamespace, own), service: s.Daemons}
		running.Go(func() { f.follow(ctx, func() { w.setDaemons(addresses(f.slices)) }, w.daemonsFailed) })
	}
	f := &follower{cluster: cluster, namespace: cmp.Or(s.Namespace, own), service: s.Service}
	f.follow(ctx, func() { w.setEngines(addresses(f.slices)) }, w.enginesFailed)
	running.Wait()
}

func (w *services) setEngines(list []endpointAt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.engines, w.listed, w.failedE = list, true, nil
	w.tell()
}

func (w *services) enginesFailed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failedE = err
	w.to.failed(err)
}

// setDaemons takes the daemons' addresses. A node whose daemon is away keeps its last one: it comes back soon.
func (w *services) setDaemons(list []endpointAt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	inUse := make(map[string]bool)
	for _, e := range w.engines {
		inUse[e.NodeName] = true
	}
	maps.DeleteFunc(w.daemons, func(node, _ string) bool { return !inUse[node] })
	for _, ends := range []bool{true, false} { // a daemon that runs wins over one that ends
		for _, e := range list {
			if e.NodeName != "" && e.terminating() == ends {
				w.daemons[e.NodeName] = "http://" + net.JoinHostPort(e.address, strconv.Itoa(w.source.DaemonsPort))
			}
		}
	}
	w.nodes, w.failD = true, nil
	if w.listed {
		w.tell()
	}
}

// daemonsFailed lets engines be used without their nodes' daemons.
func (w *services) daemonsFailed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes, w.failD = true, err
	if w.listed {
		w.tell()
	} else {
		w.to.failed(err)
	}
}

// tell reports the ranks, once engines and daemons are known. The caller holds mu.
func (w *services) tell() {
	if !w.nodes {
		return
	}
	ready := make(map[string]bool)
	var places []place
	for _, e := range w.engines {
		known := w.known[e.address]
		if !e.ready() && !(known && (e.serving() || !e.terminating())) {
			continue // it starts, or has ended
		}
		ready[e.address] = true
		places = append(places, place{address: e.address, node: e.NodeName, daemon: w.daemons[e.NodeName], leaving: !e.ready()})
	}
	w.known = ready
	ranks, err := w.source.expandAll(places)
	w.to.found(ranks, cmp.Or(w.failedE, w.failD, err))
}

// addresses lists the endpoints of slices, sorted by address. A pod has an endpoint for each of its families; one is
// enough, that of IPv4 if there is one.
func addresses(all map[string]endpointSlice) []endpointAt {
	byPod := make(map[string]endpointAt)
	for _, family := range []string{"IPv6", "IPv4"} { // the later one wins
		for _, name := range slices.Sorted(maps.Keys(all)) {
			s := all[name]
			if s.AddressType != family {
				continue
			}
			for _, e := range s.Endpoints {
				if len(e.Addresses) == 0 {
					continue
				}
				a, err := netip.ParseAddr(e.Addresses[0]) // a consumer takes the first one
				if err != nil {
					continue
				}
				byPod[cmp.Or(e.TargetRef.UID, a.String())] = endpointAt{e, a.String()}
			}
		}
	}
	byAddress := make(map[string]endpointAt, len(byPod)) // a pod that moves may be in two slices for a moment
	for _, e := range byPod {
		if old, twice := byAddress[e.address]; !twice || old.terminating() {
			byAddress[e.address] = e
		}
	}
	list := make([]endpointAt, 0, len(byAddress))
	for _, at := range slices.Sorted(maps.Keys(byAddress)) {
		list = append(list, byAddress[at])
	}
	return list
}
