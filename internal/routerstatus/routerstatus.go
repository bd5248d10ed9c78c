// Package routerstatus asks a router what it does, and writes that for people.
package routerstatus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/service"
)

// Status is what a router says of itself and of its ranks.
type Status struct {
	service.Status
	Ranks []route.RankInfo `json:"rank_list"`
}

const (
	// fetchTimeout bounds the questions to a router, maxBytes an answer.
	fetchTimeout = 5 * time.Second
	maxBytes     = 64 << 20
)

// ErrToken means that the router wants another bearer token.
var ErrToken = errors.New("the router wants its token: set KVCONN_ROUTER_TOKEN")

// Fetch asks the router at addr, HOST:PORT or a URL. token is the router's, empty if it has none.
func Fetch(ctx context.Context, addr, token string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	s := new(Status)
	if err := get(ctx, addr, "/v1/status", token, &s.Status); err != nil {
		return nil, err
	}
	var list service.RankList
	if err := get(ctx, addr, "/v1/ranks", token, &list); err != nil {
		return nil, err
	}
	s.Ranks = list.Ranks
	return s, nil
}

func get(ctx context.Context, addr, path, token string, to any) error {
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(addr, "/")+path, nil)
	if err != nil {
		return fmt.Errorf("ask the router: %w", err)
	}
	resp, err := httpserve.Client(token).Do(req)
	if err != nil {
		return fmt.Errorf("ask the router: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return ErrToken
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s from %s: %s", path, addr, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBytes)).Decode(to); err != nil {
		return fmt.Errorf("%s from %s: %w", path, addr, err)
	}
	return nil
}

// Print writes the status for people.
func Print(out io.Writer, s *Status) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "%s\trouter, up %s, policy %s\n", clean(s.Version), time.Duration(s.UptimeS*float64(time.Second)).Round(time.Second), clean(s.Policy))
	fmt.Fprintf(w, "models\t%s\n", clean(strings.Join(s.Models, ", ")))
	fmt.Fprintf(w, "ranks\t%d, %d ready\n", s.Stats.Ranks, s.Ready)
	if s.Draining {
		fmt.Fprintf(w, "STOPPING\tsoon it takes no new requests\n")
	}
	if s.Health.OK {
		fmt.Fprintf(w, "health\tgood\n")
	}
	for _, r := range s.Health.Reasons {
		fmt.Fprintf(w, "UNHEALTHY\t%s (%s)\n\t%s\n", clean(r.Detail), r.Code, r.Remedy)
	}
	p := &s.Proxy
	fmt.Fprintf(w, "requests\t%d in flight; %d answered, %d failed, %d broken off, %d found no rank, %d clients' errors, %d tried again\n",
		s.InFlight, p.OK, p.Failed, p.Broken, p.Refused, p.ClientErrors, p.Retries)
	fmt.Fprintf(w, "prompts\t%d tokens, expected on the chosen rank: %d in its GPU, %d on disk, %d in the bucket\n",
		s.PromptTokens, s.GPUTokens, s.DiskTokens, s.ObjectTokens)
	fmt.Fprintf(w, "index\t%d blocks\n", s.Index.Blocks)
	for _, b := range s.BlockSizes {
		fmt.Fprintf(w, "blocks\t%d tokens, %s: %s\n", b.Tokens, originText(b.From), clean(b.Model))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return printRanks(out, s.Ranks)
}

// originText says where a block size comes from.
func originText(o blocksize.Origin) string {
	switch o {
	case blocksize.Given:
		return "as given"
	case blocksize.Engines:
		return "as engines' events say"
	case blocksize.Stores:
		return "as stores have them"
	}
	return clean(string(o))
}

func printRanks(out io.Writer, ranks []route.RankInfo) error {
	if len(ranks) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "\nRANK\tMODEL\tENDPOINT\tREADY\tACTIVE\tGPU BLOCKS\tEVENTS\tDISK\n")
	for i := range ranks {
		r := &ranks[i]
		ready := "yes"
		if !r.Ready {
			ready = "no: " + clean(r.Why)
		}
		events, disk := "-", "-"
		if r.EventFeed != nil {
			events = string(r.EventFeed.State)
		}
		if r.DiskFeed != nil {
			disk = string(r.DiskFeed.State)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", r.ID, clean(r.Model), clean(r.Endpoint), ready, r.Load.ActiveRequests, r.GPUBlocks, events, disk)
	}
	return w.Flush()
}

// clean makes a text that others gave fit for a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
