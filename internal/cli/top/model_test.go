package top

import (
	"errors"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/daemon/contents"
	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/routerstatus"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/worker"
)

// exampleDaemon is a daemon whose engine "busy" asks most, and whose engine "hot" hits most.
func exampleDaemon(uptimeS float64) look {
	n := uint64(uptimeS)
	s := &daemon.Status{
		Version: "kvconnd/1.2.3", Epoch: "e", UptimeS: uptimeS, Socket: "/run/kvconn/kvconnd.sock", Health: health.State{OK: true},
		Engines: []daemon.EngineStatus{
			{Engine: "busy", Model: "org/b", RanksNeeded: 2, Requests: leader.Stats{QueriedTokens: 1000 * n, OfferedTokens: 100 * n}},
			{Engine: "hot", Model: "evil\x1b[2J", RanksNeeded: 1, NotReady: "a rank is missing", Requests: leader.Stats{QueriedTokens: 10 * n, OfferedTokens: 10 * n}},
			{Engine: "absent", Model: "org/a", RanksNeeded: 1},
		},
		Ranks:  []daemon.RankStatus{{Engine: "busy", Registered: true, Transfers: worker.Stats{LoadedBytes: n << 30}}, {Engine: "busy", Rank: 1}},
		Tiers:  []daemon.TierStatus{{Tier: "disk", Records: 5, UsedBytes: 1 << 30, ReachableBytes: 4 << 30, Hits: 7 * n}},
		Models: []contents.Model{{Model: "org/b", Bytes: 3 << 30, Records: 3, Namespaces: 1}, {Model: "org/a", Bytes: 1 << 30, Records: 1, Namespaces: 1}},
	}
	s.Totals.Requests = leader.Stats{QueriedTokens: 1010 * n, OfferedTokens: 110 * n}
	s.Totals.Transfers = worker.Stats{LoadedBytes: n << 30}
	return look{daemon: s}
}

func exampleRouter(uptimeS float64) look {
	n := uint64(uptimeS)
	s := new(routerstatus.Status)
	s.Version, s.UptimeS, s.Policy, s.Health.OK = "kvconnd/1.2.3", uptimeS, "cost", true
	s.Stats.Ranks, s.Ready, s.InFlight = 2, 1, 4
	s.Proxy.OK, s.PromptTokens, s.GPUTokens, s.DiskTokens = 3*n, 1000*n, 500*n, 250*n
	s.Ranks = []route.RankInfo{
		{Rank: registry.Rank{ID: 0, Model: "m", Endpoint: "http://a:1"}, Ready: true, Load: inflight.Rank{ActiveRequests: 1}, GPUBlocks: 900},
		{Rank: registry.Rank{ID: 1, Model: "n", Endpoint: "http://b:1"}, Load: inflight.Rank{ActiveRequests: 3}, GPUBlocks: 5},
	}
	return look{router: s}
}

// shown is a model on a terminal of that size after two looks.
func shown(t *testing.T, width, height int, looks ...look) model {
	t.Helper()
	m := newModel(func() look { return looks[0] }, 2*time.Second)
	m = updated(t, m, tea.WindowSizeMsg{Width: width, Height: height})
	for _, l := range looks {
		m = updated(t, m, lookMsg(l))
	}
	return m
}

func updated(t *testing.T, m model, msg tea.Msg) model {
	t.Helper()
	next, _ := m.Update(msg)
	return next.(model)
}

func key(code rune, mod tea.KeyMod) tea.KeyPressMsg {
	k := tea.KeyPressMsg{Code: code, Mod: mod}
	if mod == 0 && code != tea.KeyEscape {
		k.Text = string(code)
	}
	return k
}

func TestADaemonIsShownWithTheRatesOfTheInterval(t *testing.T) {
	m := shown(t, 80, 30, exampleDaemon(58), exampleDaemon(60))
	screen := m.screen()
	for _, want := range []string{
		"load 1.0 GiB/s", "asked 1010 tokens/s, hits 10.9%", "25.0%  7\n", "1000/s     10.0%   1.0 GiB/s  org/b", "NOT READY  100.0%", "evil?[2J", "3.0 GiB  3        1           org/b", "q quit",
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("%q is missing:\n%s", want, screen)
		}
	}
	// A daemon that was restarted has none yet.
	other := exampleDaemon(61)
	other.daemon.Epoch = "f"
	if screen := updated(t, m, lookMsg(other)).screen(); !strings.Contains(screen, "load -") || strings.Contains(screen, "GiB/s") {
		t.Errorf("after a restart:\n%s", screen)
	}
}

func TestARouterIsShownWithTheRatesOfTheInterval(t *testing.T) {
	screen := shown(t, 100, 30, exampleRouter(58), exampleRouter(60)).screen()
	for _, want := range []string{
		"policy cost, 1 of 2 ranks ready", "4 in flight; 3.0/s answered", "1000 tokens/s, expected in the GPU 50.0%, on disk 25.0%, in the bucket 0.0%", "http://a:1", "0/1    3       5           n",
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("%q is missing:\n%s", want, screen)
		}
	}
}

func TestSChangesTheOrder(t *testing.T) {
	m := shown(t, 80, 40, exampleDaemon(58), exampleDaemon(60))
	first := func(names ...string) string {
		name, at := "", len(m.screen())
		for _, n := range names {
			if i := strings.Index(m.screen(), "\n"+n); i >= 0 && i < at {
				name, at = n, i
			}
		}
		return name
	}
	for _, want := range []string{"busy", "hot", "absent", "busy"} {
		if got := first("busy", "hot", "absent"); got != want {
			t.Errorf("by %s: %s is first, want %s\n%s", m.order, got, want, m.screen())
		}
		m = updated(t, m, key('s', 0))
	}
	m = shown(t, 100, 40, exampleRouter(60))
	for _, want := range []string{"1", "0", "0", "1"} {
		if got := first("0  ", "1  "); strings.TrimSpace(got) != want {
			t.Errorf("by %s: rank %s is first, want %s\n%s", m.order, got, want, m.screen())
		}
		m = updated(t, m, key('s', 0))
	}
}

func TestKeysEndTheView(t *testing.T) {
	m := shown(t, 80, 24, exampleDaemon(60))
	for _, k := range []tea.KeyPressMsg{key('q', 0), key('c', tea.ModCtrl), key(tea.KeyEscape, 0)} {
		_, command := m.Update(k)
		if command == nil {
			t.Fatalf("%s does nothing", k)
		}
		if _, ok := command().(tea.QuitMsg); !ok {
			t.Errorf("%s does not end the view", k)
		}
	}
	if _, command := m.Update(key('x', 0)); command != nil {
		t.Error("x does something")
	}
}

// Whatever the size, there are that many lines and none is wider; the keys are always shown.
func TestTheViewFitsEveryTerminal(t *testing.T) {
	broken := look{err: errors.New("no daemon\x1b[2J answers at a rather long address: connection refused")}
	many := exampleDaemon(60)
	for range 300 {
		many.daemon.Engines = append(many.daemon.Engines, many.daemon.Engines[0])
	}
	for _, l := range []look{exampleDaemon(60), exampleRouter(60), broken, many, {}} {
		for _, size := range [][2]int{{80, 24}, {20, 5}, {1, 1}, {3, 2}, {200, 60}, {80, 3}} {
			screen := shown(t, size[0], size[1], l).screen()
			lines := strings.Split(screen, "\n")
			if len(lines) != size[1] {
				t.Errorf("%d lines on a terminal of %v:\n%s", len(lines), size, screen)
			}
			for _, line := range lines {
				if ansi.StringWidth(line) > size[0] || strings.Contains(line, "\x1b") {
					t.Errorf("a terminal of %v: %q", size, line)
				}
			}
			if size[0] >= 80 && !strings.HasPrefix(lines[len(lines)-1], "q quit") {
				t.Errorf("no keys on a terminal of %v:\n%s", size, screen)
			}
		}
	}
	if screen := shown(t, 0, 0, many).screen(); screen != "" {
		t.Errorf("before the size is known: %q", screen)
	}
}

// A daemon that does not answer is shown as such, and asked again.
func TestTheNextLookFollowsAnError(t *testing.T) {
	m := shown(t, 80, 24, exampleDaemon(58))
	next, command := m.Update(lookMsg{err: errors.New("refused")})
	if m = next.(model); command == nil || !strings.Contains(m.screen(), "refused") {
		t.Fatalf("%s", m.screen())
	}
	if _, command = m.Update(tickMsg{}); command == nil {
		t.Fatal("no look follows")
	}
	if _, ok := command().(lookMsg); !ok {
		t.Error("no look follows")
	}
	if screen := updated(t, m, lookMsg(exampleDaemon(62))).screen(); !strings.Contains(screen, "load -") {
		t.Errorf("rates though there was no look before:\n%s", screen)
	}
}
