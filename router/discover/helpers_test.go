package discover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/route"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// fast is an interval for tests.
const fast = Duration(minInterval)

// found is a router whose ranks are discovered.
type found struct {
	*route.Router
	*Discovery
	t *testing.T
}

// discover starts a router and follows sources until the test ends.
func discover(t *testing.T, change func(*Options), sources ...Source) found {
	t.Helper()
	r, err := route.New(route.Options{AssumeReady: true, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Sources: sources, Ranks: r, Logger: quiet()}
	for i := range o.Sources {
		o.Sources[i].EnsureDefaults()
	}
	if change != nil {
		change(&o)
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); d.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; r.Close() })
	return found{r, d, t}
}

// endpoints are those of the ranks; one that gets no requests has a mark.
func (f found) endpoints() []string {
	var list []string
	for _, r := range f.Ranks() {
		e := r.Endpoint
		if r.Draining {
			e += " draining"
		}
		list = append(list, e)
	}
	slices.Sort(list)
	return list
}

// wants waits for the ranks to have these endpoints.
func (f found) wants(want ...string) {
	f.t.Helper()
	wait.For(f.t, fmt.Sprintf("ranks at %v", want), func() bool { return slices.Equal(f.endpoints(), want) })
}

// fails waits for n more failed tries.
func (f found) fails(n int) {
	f.t.Helper()
	from := f.Discovery.Stats().Errors
	wait.For(f.t, "failed tries", func() bool { return f.Discovery.Stats().Errors >= from+uint64(n) })
}

// template is a rank as sources describe it.
func template(t *testing.T, fields map[string]any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWrongSourcesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                                    "one of file, dns and service",
		`{"file": "f", "dns": "d"}`:             "one of file, dns and service",
		`{"file": "f", "intervall": "1s"}`:      "unknown field",
		`{"file": "f", "interval": "1ms"}`:      "at least 100ms",
		`{"file": "f", "interval": 3}`:          "",
		`{"file": "f"} {}`:                      "more than one",
		`{"file": "f", "rank": {"model": "m"}}`: "a file has whole ranks",
		`{"file": "f", "daemons": "kvconn"}`:    "for a service",
		`{"dns": "d"}`:                          "rank is missing",
		`{"dns": "http://d", "rank": {}}`:       "is no name",
		`{"dns": "d", "rank": []}`:              "rank wants fields",
		`{"dns": "d", "rank": {"model": "m", "endpoint": "http://h:1"}}`:                               "does not contain {address}",
		`{"dns": "d", "rank": {"id": 1, "model": "m", "endpoint": "http://{address}:1"}}`:              "has an id",
		`{"dns": "d", "rank": {"endpoint": "http://{address}:1"}}`:                                     "model is empty",
		`{"dns": "d", "rank": {"model": "m", "endpoint": "{address}"}}`:                                "want http://host:port",
		`{"dns": "d", "dp_size": 2, "rank": {"model": "m", "endpoint": "http://{address}:1"}}`:         "dp_mode internal",
		`{"dns": "d", "dp_size": 2000, "rank": {"model": "m", "endpoint": "http://{address}:1"}}`:      "1 to 1024",
		`{"service": "a/../b", "rank": {"model": "m", "endpoint": "http://{address}:1"}}`:              "no name of Kubernetes",
		`{"service": "s", "namespace": "n?x", "rank": {"model": "m", "endpoint": "http://{address}"}}`: "no name of Kubernetes",
		`{"service": "s", "daemons_port": 1, "rank": {"model": "m", "endpoint": "http://{address}"}}`:  "are for daemons",
		`{"service": "s", "daemons": "d", "daemons_port": 99999, "rank": {}}`:                          "1 to 65535",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	s, err := Parse([]byte(`{"service": "s", "daemons": "d", "rank": {"model": "m", "endpoint": "http://{address}:8000"}}`))
	if err != nil || s.DaemonsPort != defaultPort || s.Interval == 0 {
		t.Errorf("%+v %v", s, err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := New(Options{Sources: []Source{s}}); err == nil || !strings.Contains(err.Error(), "KUBERNETES_SERVICE_HOST") {
		t.Errorf("outside of a cluster: %v", err)
	}
}

func TestATemplateMakesRanks(t *testing.T) {
	s := Source{DNS: "d", DPSize: 2, Rank: template(t, map[string]any{
		"model": "m", "endpoint": "http://{address}:8000", "dp_mode": "internal", "adapters": []string{"a"},
		"events": map[string]any{"endpoint": "tcp://{address}:5557"},
	})}
	s.EnsureDefaults()
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	ranks, err := s.expandAll([]place{{address: "10.0.0.1", node: "n", daemon: "http://10.0.0.9:9477"}, {address: "fd00::1", leaving: true}})
	if err != nil || len(ranks) != 4 {
		t.Fatalf("%+v %v", ranks, err)
	}
	a, b := ranks[1], ranks[2]
	if a.Endpoint != "http://10.0.0.1:8000" || a.DPRank != 1 || a.Events.Endpoint != "tcp://10.0.0.1:5557" || a.Node != "n/10.0.0.9:9477" || a.NodeURL != "http://10.0.0.9:9477" || a.Draining || a.ID != noID {
		t.Errorf("%+v", a)
	}
	if b.Endpoint != "http://[fd00::1]:8000" || b.DPRank != 0 || b.Node != "" || !b.Draining {
		t.Errorf("%+v", b)
	}
	many := make([]place, maxFound)
	for i := range many {
		many[i].address = fmt.Sprintf("h%d", i)
	}
	if ranks, err = s.expandAll(many); err == nil || len(ranks) > maxFound {
		t.Errorf("%d ranks, %v", len(ranks), err)
	}
}

// A rank that is found no more gets no new requests, and stays until its own have ended.
func TestARankThatLeavesIsDrained(t *testing.T) {
	path := t.TempDir() + "/ranks.yaml"
	write(t, path, "ranks: [{model: m, endpoint: 'http://a:1'}, {model: m, endpoint: 'http://b:1'}]")
	f := discover(t, nil, Source{File: path, Interval: fast})
	f.wants("http://a:1", "http://b:1")
	ids := map[string]int32{}
	for _, r := range f.Ranks() {
		ids[r.Endpoint] = r.ID
		if r.ID < firstID {
			t.Errorf("rank %d", r.ID)
		}
	}
	a := ids["http://a:1"]
	var d route.Decision
	req := route.Request{Model: "m", Prompt: []uint32{1, 2, 3}, Request: policy.Request{Pin: a, Strict: true}}
	if err := f.Route(t.Context(), &req, &d); err != nil {
		t.Fatal(err)
	}
	write(t, path, "ranks: [{model: m, endpoint: 'http://b:1'}]")
	f.wants("http://a:1 draining", "http://b:1")
	wait.For(t, "one rank and one that leaves", func() bool { s := f.Discovery.Stats(); return s.Ranks == 1 && s.Leaving == 1 && s.Failing == 0 })
	// One that is found again goes on as it was.
	write(t, path, "ranks: [{model: m, endpoint: 'http://b:1'}, {model: m, endpoint: 'http://a:1'}]")
	f.wants("http://a:1", "http://b:1")
	if info, ok := f.Router.Rank(a); !ok || info.Load.ActiveRequests != 1 {
		t.Errorf("%+v %v", info, ok)
	}
	write(t, path, "ranks: [{model: m, endpoint: 'http://b:1'}]")
	f.wants("http://a:1 draining", "http://b:1")
	if !f.Finish(d.Handle) {
		t.Fatal("the request was not known any more")
	}
	f.wants("http://b:1")
	// Its id is not given to the next one: clients may still pin it.
	write(t, path, "ranks: [{model: m, endpoint: 'http://b:1'}, {model: m, endpoint: 'http://c:1'}]")
	f.wants("http://b:1", "http://c:1")
	if _, ok := f.Router.Rank(a); ok {
		t.Error("the id was used again")
	}
}

// Requests that never end do not keep a rank.
func TestARankLeavesInTheEnd(t *testing.T) {
	path := t.TempDir() + "/ranks.yaml"
	write(t, path, "ranks: [{id: 7, model: m, endpoint: 'http://a:1'}]")
	f := discover(t, func(o *Options) { o.LeaveTimeout = 10 * time.Millisecond }, Source{File: path, Interval: fast})
	f.wants("http://a:1")
	var d route.Decision
	if err := f.Route(t.Context(), &route.Request{Model: "m", Prompt: []uint32{1}, Request: policy.Request{Pin: policy.NoPin}}, &d); err != nil || d.Rank != 7 {
		t.Fatal(d, err)
	}
	write(t, path, "ranks: []")
	f.wants()
}

// info is a rank of the router.
type info = route.RankInfo

// A source that fails in a new way each time does not fill the log.
func TestASourceThatFailsIsLoggedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		source := Source{File: "/r"}
		source.EnsureDefaults()
		d, err := New(Options{Sources: []Source{source}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 120 {
			d.take(report{err: fmt.Errorf("no answer from port %d", 1000+i)})
			time.Sleep(time.Second)
		}
		if n := strings.Count(log.String(), "no answer"); n != 2 {
			t.Errorf("%d lines in two minutes", n)
		}
		d.take(report{})
		d.take(report{err: fmt.Errorf("no answer again")})
		if text := log.String(); strings.Count(text, "again") < 2 || d.Stats().Errors != 121 {
			t.Errorf("%s\n%+v", text, d.Stats())
		}
	})
}

// One try that fails is no state that anybody has to know of.
func TestASourceIsDownOnceItFailsAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := Source{File: "/r"}
		source.EnsureDefaults()
		d, err := New(Options{Sources: []Source{source}, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		is := func(failing, down int) {
			t.Helper()
			d.count()
			if s := d.Stats(); s.Failing != failing || s.Down != down {
				t.Errorf("failing %d, down %d; want %d, %d", s.Failing, s.Down, failing, down)
			}
		}
		fails := func() { d.take(report{err: errors.New("no")}) }
		fails()
		fails()
		is(1, 0)
		fails() // the third in a row
		is(1, 1)
		d.take(report{})
		is(0, 0)
		fails()
		time.Sleep(downAfter - time.Second)
		is(1, 0)
		time.Sleep(time.Second)
		is(1, 1) // for long, if seldom
		d.take(report{listed: true})
		is(0, 0)
		fails()
		time.Sleep(downAfter / 2)
		is(1, 0)
	})
}
