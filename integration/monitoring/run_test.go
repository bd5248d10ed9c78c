package monitoring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/engine/model"
	kvconn "github.com/kvconn/kvconn/internal/monitoring"
	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/freeport"
	"github.com/kvconn/kvconn/internal/testkit/prompts"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// binary is kvconnd: that of KVCONND, or one that is built.
func binary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("KVCONND"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "kvconnd")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/kvconnd")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build kvconnd: %v\n%s", err, out)
	}
	return path
}

// start runs kvconnd with arguments until the test ends, and waits until it is ready.
func start(t *testing.T, path, address string, environ []string, args ...string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KVCONN") && !strings.HasPrefix(v, "AWS_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, environ...)
	log := new(strings.Builder)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%v:\n%s", args, log)
		}
	})
	wait.For(t, args[0]+" to be ready", func() bool {
		resp, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode == http.StatusOK
	})
}

// serveEngine connects the built-in engine to a daemon.
func serveEngine(t *testing.T, socket string) *engine.Engine {
	t.Helper()
	e, err := engine.New(engine.Options{Model: model.Tiny(1), BlockSize: 8, Blocks: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	o := client.Options{Socket: socket, Engine: "monitored", Manifest: e.Manifest(), CallTimeout: 30 * time.Second, RetryInterval: time.Millisecond}
	if err := e.Connect(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return e
}

// scraper is a Prometheus that scrapes every 15 s, by a clock of its own.
type scraper struct {
	t   *testing.T
	db  *tsdb.DB
	now time.Time
}

const interval = 15 * time.Second

func newScraper(t *testing.T) *scraper {
	t.Helper()
	db, err := tsdb.Open(t.TempDir(), nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &scraper{t: t, db: db, now: time.Now().Add(-time.Hour).Truncate(time.Second)}
}

// Forms that Prometheus asks for: as text, and with native histograms.
const (
	asText   = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
	asNative = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)

// get asks an address for its metrics.
func (s *scraper) get(address, accept string) textparse.Parser {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatal(resp.Status, err)
	}
	p, err := textparse.New(body, resp.Header.Get("Content-Type"), labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// natives counts the native histograms that an address exports.
func (s *scraper) natives(address string) (n int) {
	s.t.Helper()
	p := s.get(address, asNative)
	for {
		entry, err := p.Next()
		switch {
		case errors.Is(err, io.EOF):
			return n
		case err != nil:
			s.t.Fatal(err)
		case entry == textparse.EntryHistogram:
			n++
		}
	}
}

// scrape takes in what addresses export, by their jobs.
func (s *scraper) scrape(jobs map[string]string) {
	s.t.Helper()
	s.now = s.now.Add(interval)
	for job, address := range jobs {
		s.take(s.get(address, asText), job, address)
	}
}

func (s *scraper) take(p textparse.Parser, job, address string) {
	s.t.Helper()
	app := s.db.Appender(s.t.Context())
	add := func(of labels.Labels, v float64) {
		l := labels.NewBuilder(of).Set("job", job).Set("instance", address).Labels()
		if _, err := app.Append(0, l, s.now.UnixMilli(), v); err != nil {
			s.t.Fatalf("%s: %v", l, err)
		}
	}
	add(labels.FromStrings("__name__", "up"), 1)
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			s.t.Fatalf("scrape of %s: %v", job, err)
		}
		if entry == textparse.EntrySeries {
			var l labels.Labels
			_, _, v := p.Series()
			p.Labels(&l)
			add(l, v)
		}
	}
	if err := app.Commit(); err != nil {
		s.t.Fatal(err)
	}
}

// query evaluates an expression now, and returns how many series it has, and how many of them are numbers.
func (s *scraper) query(e *promql.Engine, expr string) (series, numbers int, text string) {
	s.t.Helper()
	q, err := e.NewInstantQuery(context.Background(), s.db, nil, expr, s.now)
	if err != nil {
		s.t.Fatalf("%s: %v", expr, err)
	}
	defer q.Close()
	r := q.Exec(context.Background())
	if r.Err != nil {
		s.t.Errorf("%s: %v", expr, r.Err)
		return 0, 0, ""
	}
	v, err := r.Vector()
	if err != nil {
		s.t.Errorf("%s: %v", expr, err)
	}
	for _, sample := range v {
		if !math.IsNaN(sample.F) {
			numbers++
		}
	}
	return len(v), numbers, v.String()
}

// world is a daemon with a bucket and the built-in engine, and a router with engines.
func world(t *testing.T) (jobs map[string]string, work func(round int)) {
	t.Helper()
	path, dir := binary(t), t.TempDir()
	bucket := httptest.NewServer(s3mem.New(s3mem.Options{}, "bucket"))
	t.Cleanup(bucket.Close)
	daemon, router, socket := freeport.Address(t), freeport.Address(t), filepath.Join(dir, "s")
	start(t, path, daemon, []string{"AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=secret", "AWS_EC2_METADATA_DISABLED=true"},
		"serve", "--dir", filepath.Join(dir, "store"), "--socket", socket, "--http", daemon, "--max-bytes", "192MiB", "--min-free", "0", "--host-bytes", "64MiB",
		"--stage-timeout", "10s", "--load-timeout", "60s", "--min-free", "1MiB",
		"--object", "s3://bucket/cache", "--object-endpoint", bucket.URL, "--object-region", "us-east-1", "--object-upload-age", "500ms")
	fake := enginetest.New(t, "m")
	start(t, path, router, nil, "router", "--http", router, "--rank-metrics", "--rank", "id=0,model=m,endpoint="+fake.URL)
	e := serveEngine(t, socket)
	return map[string]string{"kvconn": daemon, "kvconn-router": router}, func(round int) {
		t.Helper()
		// More prompts than the engine has blocks for: those that come again are loaded. Two are new.
		var requests []engine.Request
		for i := range 12 {
			number := uint64(i)
			if i >= 10 {
				number = uint64(100 + 2*round + i)
			}
			requests = append(requests, engine.Request{ID: fmt.Sprint(round, "-", i), Prompt: prompts.Of(number, 160), MaxTokens: 2})
		}
		for i := range requests {
			if _, err := e.Run(t.Context(), requests[i:i+1]); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 4 {
			body := fmt.Sprintf(`{"model":"m","prompt":[%d,2,3],"stream":%t}`, i, i%2 == 0)
			resp, err := http.Post("http://"+router+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
				t.Fatal(resp.Status)
			}
		}
	}
}

// lacking are panels that this run has no data for, with why: they must have none, or the reason is wrong.
func lacking() map[string]string {
	return map[string]string{
		"Bytes copied by GPU":            "no GPU",
		"Starts of copiers":              "no GPU",
		"Wait of saves for earlier ones": "the engine's memory is the host's: its saves do not wait",
	}
}

// A Prometheus that scrapes a real run has data for every panel, and no alert fires.
func TestARealRunGivesEveryPanelData(t *testing.T) {
	jobs, work := world(t)
	s := newScraper(t)
	s.scrape(jobs)
	for round := range 6 {
		work(round)
		s.scrape(jobs)
	}
	e := promql.NewEngine(promql.EngineOpts{MaxSamples: 1 << 22, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{})})
	without := lacking()
	for _, path := range []string{kvconn.DaemonDashboard, kvconn.RouterDashboard} {
		for _, q := range targets(t, path) {
			_, numbers, text := s.query(e, q.expr)
			if _, lacks := without[q.panel]; lacks != (numbers == 0) {
				t.Errorf("%s, %s: %d numbers, expected none: %t\n%s\n%s", path, q.panel, numbers, lacks, q.expr, text)
			}
		}
	}
	for _, a := range kvconn.Alerts() {
		if a.Name == "KvconnMatchSlow" {
			continue // on a machine that tests share, it may
		}
		if n, _, text := s.query(e, a.Expr); n > 0 {
			t.Errorf("%s fires while all is well: %s", a.Name, text)
		}
	}
	for job, address := range jobs {
		if n := s.natives(address); n < 3 {
			t.Errorf("%s has %d native histograms", job, n)
		}
	}
	// The sources add up to all prompt tokens: 6 rounds of 12 prompts of 160.
	const all = 6 * 12 * 160
	if n, _, text := s.query(e, fmt.Sprintf("sum(kvconn_prompt_tokens_total) == %d", all)); n != 1 {
		_, _, sources := s.query(e, "kvconn_prompt_tokens_total")
		t.Errorf("the sources do not add up to %d: %s\n%s", all, text, sources)
	}
	if n, _, _ := s.query(e, `sum(kvconn_prompt_tokens_total{source=~"host|disk"}) > 0 == on () sum(kvconn_offered_tokens_total)`); n != 1 {
		t.Error("what came from the tiers is not what was offered")
	}
}
