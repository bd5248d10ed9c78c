package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/bench/objectbench"
)

// Figures are compared by these names.
func TestBenchObjectNamesItsFigures(t *testing.T) {
	b, err := json.Marshal(objectbench.Result{})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"fetch_ratio", "upload_ratio", "fetch_copied", "link_bytes_per_s", "forms", "requests", "lookup_s", "disk_lookup_s", "lookup_ratio", "lookup_requests",
		"join_s", "join_cpu_s", "bytes_per_record", "list_bytes_per_record",
	} {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestBenchObjectUsageErrorsNameTheFlag(t *testing.T) {
	for want, args := range map[string][]string{
		"--block is 0":        {"bench", "object", "--block", "0"},
		"--rounds is -1":      {"bench", "object", "--rounds=-1"},
		"needs the URL":       {"bench", "object", "--object-endpoint", "http://127.0.0.1:1"},
		"blocks of 5 bytes":   {"bench", "object", "--block", "5"},
		"object: want s3://":  {"bench", "object", "--object", "nowhere"},
		"100 records: want 8": {"bench", "object", "--records", "100"},
	} {
		if status, out, errs := kvconnd(args...); status == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q, %q; want %q", args, status, out, errs, want)
		}
	}
}
