package main

import (
	"io"
	"log/slog"
	"testing"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
	"github.com/kvconn/kvconn/internal/tracelog"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/proxy"
	"github.com/kvconn/kvconn/router/service"
	"github.com/kvconn/kvconn/store/host"
)

// parsed returns a command line's settings.
func parsed(t *testing.T, args ...string) *cli {
	t.Helper()
	c := new(cli)
	p, err := newParser(t.Context(), c, &terminal.Streams{Out: io.Discard, Err: io.Discard}, new(settings.Resolver), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c
}

// A setting that is not set means what the part that it is for does by itself.
func TestDefaultsOfSettingsAreThoseOfTheParts(t *testing.T) {
	s := parsed(t, "serve", "--dir", "/d").Serve
	var d daemon.Options
	var l leader.Options
	var a host.AccountOptions
	d.EnsureDefaults()
	l.EnsureDefaults()
	a.EnsureDefaults()
	r := parsed(t, "router").Router
	o, err := r.Options(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var want service.Options
	var p proxy.Options
	var cost policy.CostOptions
	want.EnsureDefaults()
	p.EnsureDefaults()
	cost.EnsureDefaults()
	var rec tracelog.Options
	rec.EnsureDefaults()
	for name, pair := range map[string][2]any{
		"record_trace_bytes": {int64(s.RecordTraceBytes), rec.MaxBytes}, "record_trace_block_tokens": {s.RecordTraceBlockTokens, rec.BlockTokens},
		"load_timeout": {s.LoadTimeout, d.LoadTimeout}, "stop_timeout": {s.StopTimeout, d.StopTimeout}, "stage_timeout": {s.StageTimeout, l.HandoffTimeout},
		"load_staging_bytes": {int64(s.LoadStagingBytes), a.LoadBytes}, "save_staging_bytes": {int64(s.SaveStagingBytes), a.SaveBytes},
		"min_offer_tokens": {s.MinOfferTokens, l.MinOfferTokens},
		"predict_ttl":      {o.Route.PredictTTL, want.Route.PredictTTL}, "approximate_ttl": {o.Route.ApproximateTTL, want.Route.ApproximateTTL},
		"request_ttl": {o.Route.Load.TTL, want.Route.Load.TTL}, "index_bytes": {o.Route.Index.MaxBytes, min(want.Route.Index.MaxBytes, hostmemory.AvailableBytes()/4)},
		"max_prompt_tokens": {o.Route.MaxPromptTokens, want.Route.MaxPromptTokens}, "max_body_bytes": {o.MaxBodyBytes, want.MaxBodyBytes},
		"tokenize_timeout": {o.TokenizeTimeout, want.TokenizeTimeout}, "drain_timeout": {o.DrainTimeout, want.DrainTimeout},
		"drain_delay": {o.DrainDelay, want.DrainDelay},
		"health_path": {o.HealthPath, want.HealthPath}, "health_interval": {o.HealthInterval, want.HealthInterval},
		"max_tries": {o.MaxTries, p.MaxTries}, "first_byte_timeout": {o.FirstByteTimeout, p.FirstByteTimeout}, "stream_timeout": {o.IdleTimeout, p.IdleTimeout},
		"decode_weight": {o.Policy.Cost.DecodeWeight, cost.DecodeWeight}, "balance_weight": {o.Policy.Cost.BalanceWeight, cost.BalanceWeight},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %v by default, and %v where nobody sets it", name, pair[0], pair[1])
		}
	}
}
