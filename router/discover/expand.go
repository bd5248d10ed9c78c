package discover

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/kvconn/kvconn/router/registry"
)

// place is where an engine was found.
type place struct {
	// address is an IP address or a host name, node the machine, empty if it is not known.
	address, node string
	// daemon is the URL of the machine's kvconnd, empty if it is not known.
	daemon string
	// leaving places get no new requests.
	leaving bool
}

// expand returns the ranks of a place.
func (s *Source) expand(p place) ([]registry.Rank, error) {
	host := p.address
	if strings.Contains(host, ":") { // IPv6
		host = "[" + host + "]"
	}
	var template any
	if err := json.Unmarshal(s.Rank, &template); err != nil {
		return nil, fmt.Errorf("rank: %w", err)
	}
	b, err := json.Marshal(replaced(template, strings.NewReplacer("{address}", host, "{node}", p.node)))
	if err != nil {
		return nil, fmt.Errorf("rank: %w", err)
	}
	r, err := registry.Parse(b)
	if err != nil {
		return nil, err
	}
	if r.Node == "" && p.daemon != "" {
		// A daemon that starts again has another address in Kubernetes. Ranks of one node share one URL, so the address
		// is part of the node's name: they change from one to the other rank by rank.
		r.Node, r.NodeURL = p.node+"/"+strings.TrimPrefix(p.daemon, "http://"), p.daemon
	}
	r.Draining = r.Draining || p.leaving
	list := []registry.Rank{r}
	if s.DPSize > 1 {
		if r.DPMode == registry.External {
			return nil, errors.New("dp_size is for dp_mode internal: ranks of one address need a header")
		}
		first := r.DPRank
		list = make([]registry.Rank, s.DPSize)
		for i := range list {
			list[i] = r
			list[i].DPRank = first + i
			if err := list[i].Validate(); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// replaced returns a JSON value whose texts went through a replacer.
func replaced(v any, by *strings.Replacer) any {
	switch v := v.(type) {
	case string:
		return by.Replace(v)
	case []any:
		for i := range v {
			v[i] = replaced(v[i], by)
		}
	case map[string]any:
		for k := range v {
			v[k] = replaced(v[k], by)
		}
	}
	return v
}

// maxFound bounds the ranks of one source: what a router has at most.
const maxFound = 4096

// expandAll returns the ranks of all places. A place that makes none is left out and reported.
func (s *Source) expandAll(places []place) (found []registry.Rank, err error) {
	for _, p := range places {
		ranks, wrong := s.expand(p)
		if wrong != nil {
			err = fmt.Errorf("address %.64q: %w", p.address, wrong)
			continue
		}
		if len(found)+len(ranks) > maxFound {
			return found, fmt.Errorf("more than %d ranks were found: the others are left out", maxFound)
		}
		for i := range ranks {
			ranks[i].ID = noID
		}
		found = append(found, ranks...)
	}
	return found, err
}
