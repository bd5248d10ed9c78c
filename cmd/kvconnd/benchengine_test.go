package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
)

// The whole command, against two engines' servers. Figures are compared by these names.
func TestBenchEngineNamesItsFigures(t *testing.T) {
	a, b := enginetest.New(t, "m"), enginetest.New(t, "n")
	t.Setenv("OPENAI_API_KEY", "secret")
	args := []string{"bench", "engine", "--url", a.URL, "--compare", b.URL, "--tokens", "64,128", "--prompts", "2", "--pause", "0s", "--chat", "--seed", "3"}
	status, out, errs := kvconnd(append(args, "--json")...)
	if status != 0 || strings.Contains(out+errs, "secret") {
		t.Fatalf("status %d: %s%s", status, out, errs)
	}
	var got struct {
		Seed    uint64
		Lengths []map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Seed != 3 || len(got.Lengths) != 2 {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"tokens", "engine", "compare", "cold_ratio", "again_ratio"} {
		if _, ok := got.Lengths[0][name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
	for i, e := range []*enginetest.Engine{a, b} {
		for _, r := range e.Requests() {
			if got := r.Header.Get("Authorization"); (got == "Bearer secret") != (i == 0) {
				t.Errorf("engine %d gets %q", i, got)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "between")
	if status, out, errs := kvconnd(append(args, "--between", "echo said; touch "+file)...); status != 0 || strings.Contains(out, "said") || !strings.Contains(errs, "said") || !strings.Contains(out, "--between") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if status, _, errs := kvconnd(append(args, "--between", "exit 5")...); status != 1 || !strings.Contains(errs, "exit status 5") {
		t.Errorf("status %d: %s", status, errs)
	}
	if status, out, errs := kvconnd(args...); status != 0 || !strings.Contains(out, "128 tokens\n") || !strings.Contains(out, "pair by pair") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
}

func TestBenchEngineUsageErrorsNameTheFlag(t *testing.T) {
	for want, args := range map[string][]string{
		"--url":              {"bench", "engine"},
		"--prompts is 0":     {"bench", "engine", "--url", "http://127.0.0.1:1", "--prompts", "0"},
		"connection refused": {"bench", "engine", "--url", "http://127.0.0.1:1"},
		"no URL":             {"bench", "engine", "--url", "127.0.0.1:1"},
	} {
		if status, out, errs := kvconnd(args...); status == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q, %q; want %q", args, status, out, errs, want)
		}
	}
}
