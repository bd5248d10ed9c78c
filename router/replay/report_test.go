package replay

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/router/policy/byname"
)

// report runs all policies on the small trace.
func report(t *testing.T, o Options) *Report {
	t.Helper()
	r, err := Run(t.Context(), readFile(t, "small.jsonl", ReadOptions{}), o, append(policyNames(), "first-turn/cost"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPrintedReport(t *testing.T) {
	var out bytes.Buffer
	if err := report(t, Options{Ranks: 2, Nodes: 2, GPUBlocks: 3, DiskBlocks: 5, ObjectBlocks: 50}).Print(&out); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "report.golden")
	if os.Getenv("KVCONN_TEST_UPDATE") == "1" {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestEqualSeedsGiveEqualReports(t *testing.T) {
	trace := randomPrompts(seed.Random(t, 17), 500)
	text := func(seed uint32, policies ...string) string {
		r, err := Run(t.Context(), trace, Options{GPUBlocks: 200, Spread: 1, Seed: seed, PrefillTokensPerS: 500}, policies, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Setup.Seed = 0
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	all := text(1, policyNames()...)
	if again := text(1, policyNames()...); all != again {
		t.Error("the same seed gave another report")
	}
	if text(2, policyNames()...) == all {
		t.Error("another seed gave the same report")
	}
	// What one policy does is no matter of the others.
	alone := text(1, "cost")
	if at := strings.Index(alone, `"policy":"cost"`); !strings.Contains(all, alone[at:]) {
		t.Error("cost alone has another result than among others")
	}
}

func TestPlotIsASoundDrawing(t *testing.T) {
	for name, o := range map[string]Options{
		"one node": {Ranks: 2}, "two nodes": {Ranks: 2, Nodes: 2}, "nobody served": {GPUBlocks: 1, Ranks: 1, DiskBlocks: -1},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := report(t, o).Plot(&out); err != nil {
				t.Fatal(err)
			}
			text := out.String()
			for _, want := range []string{"Hit rate by size of disk", "Estimated time to first token", "infinite disk, tokens", "round-robin", "first-turn/cost", "seconds after arrival"} {
				if !strings.Contains(text, want) {
					t.Errorf("%q is missing", want)
				}
			}
			for _, bad := range []string{"NaN", "Inf", "e+"} {
				if strings.Contains(text, bad) {
					t.Errorf("the drawing has %q in it", bad)
				}
			}
			for d := xml.NewDecoder(&out); ; {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// policyNames are those that kvconnd replay compares by itself.
func policyNames() []string {
	return []string{"round-robin", "load", "kv-aware", "kv-aware-gpu", "conversation", "first-turn", "cost"}
}

func TestPolicyNames(t *testing.T) {
	for _, name := range append(policyNames(), "first-turn/cost", "first-turn/kv-aware-gpu") {
		if p, err := NewPolicy(name, new(Options)); err != nil || p == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "costs", "first-turn/", "first-turn/first-turn", "first-turn/costs", "conversation/", "conversation/conversation"} {
		if _, err := NewPolicy(name, new(Options)); !errors.Is(err, byname.ErrUnknown) {
			t.Errorf("%q: %v", name, err)
		}
	}
	trace := traceOf(at(0, 1, 0))
	if _, err := Run(t.Context(), trace, Options{}, []string{"cost", "cost"}, nil); err == nil {
		t.Error("a policy named twice was accepted")
	}
}

// What the router is told to decide by can be replayed.
func TestEveryPolicyOfTheRouterCanBeReplayed(t *testing.T) {
	names := []string{"cost", "kv-aware", "serve-kv-aware", "published/load", "published/kv-aware-warmup", "published/conversation", "conversation", "conversation/cost", "conversation/first-turn/load", "first-turn/cost", "load", "round-robin"}
	r, err := Run(t.Context(), readFile(t, "small.jsonl", ReadOptions{}), Options{}, names, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range r.Policies {
		if p.Policy != names[i] || p.Served != 6 {
			t.Errorf("%s: %+v", names[i], p)
		}
	}
}

// A trace in which nothing comes again.
func TestNothingFoundIsSaidAndDrawnInFull(t *testing.T) {
	r, err := Run(t.Context(), traceOf(at(0, 1, 0), at(1, 1, 1, 2)), Options{}, policyNames(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var text, drawing bytes.Buffer
	if err := errors.Join(r.Print(&text), r.Plot(&drawing)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "a disk of any size finds nothing") || strings.Contains(text.String(), "need 0 blocks") {
		t.Errorf("%s", &text)
	}
	var picture struct {
		Height float64 `xml:"height,attr"`
		Rects  []struct {
			Y      float64 `xml:"y,attr"`
			Height float64 `xml:"height,attr"`
		} `xml:"rect"`
	}
	if err := xml.Unmarshal(drawing.Bytes(), &picture); err != nil {
		t.Fatal(err)
	}
	for _, rect := range picture.Rects {
		if rect.Y+rect.Height > picture.Height {
			t.Errorf("a box from %v of height %v is not on the page of %v", rect.Y, rect.Height, picture.Height)
		}
	}
	if len(picture.Rects) != 5 { // the page, two panels, two legends
		t.Errorf("%d boxes", len(picture.Rects))
	}
}

func TestProgressComesToItsEnd(t *testing.T) {
	last, total := -1, 0
	_, err := Run(t.Context(), randomPrompts(seed.Random(t, 1), 1000), Options{}, []string{"cost", "load"}, func(done, all int) {
		if done < last || done > all {
			t.Errorf("progress %d after %d, of %d", done, last, all)
		}
		last, total = done, all
	})
	if err != nil || total != 2000 || last < 1500 {
		t.Errorf("last progress %d of %d, %v", last, total, err)
	}
}

func TestTextOfNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0 B", 999: "999 B", 1000: "1 kB", 131072: "131 kB", 2.0132659e12: "2.01 TB", 999.96e6: "1000 MB"} {
		if got := bytesText(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := count(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
