package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/fakecuda"
)

// The whole command on the stand-in, with a copier that is this program. Figures are compared by these names.
func TestBenchGPUNamesItsFigures(t *testing.T) {
	library := fakecuda.Library(t, func() (string, error) { return fakecuda.Build("../..", t.TempDir()) })
	t.Setenv(beKvconnd, "1")
	status, out, errs := kvconnd("bench", "gpu", "--cuda-library", library, "--json")
	if status != 0 || !strings.Contains(errs, "whose figures mean nothing") {
		t.Fatalf("status %d: %s", status, errs)
	}
	var got struct {
		StandIn    bool             `json:"stand_in"`
		LeastRatio float64          `json:"least_ratio"`
		Cases      []map[string]any `json:"cases"`
		Decode     []map[string]any `json:"decode"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if !got.StandIn || !(got.LeastRatio > 0) || len(got.Cases) != 30 || len(got.Decode) != 8 {
		t.Fatalf("%+v", got)
	}
	for _, name := range []string{"layout", "block_tokens", "direction", "run_bytes", "bytes_per_s", "pinned_bytes_per_s", "ratio"} {
		if _, ok := got.Cases[0][name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
	for _, name := range []string{"beside", "way", "kernel_ratio", "median_s", "p99_s", "ratio", "copied_bytes_per_s"} {
		if _, ok := got.Decode[0][name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestBenchGPUErrorsSayWhatIsWrong(t *testing.T) {
	for want, args := range map[string][]string{
		"--rounds is 0":      {"bench", "gpu", "--rounds", "0"},
		"--steps is -1":      {"bench", "gpu", "--steps=-1"},
		"5 bytes each way":   {"bench", "gpu", "--total-bytes", "5"},
		"no CUDA driver: lo": {"bench", "gpu", "--cuda-library", "/nowhere/libcuda.so.1"},
	} {
		if status, out, errs := kvconnd(args...); status == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q, %q; want %q", args, status, out, errs, want)
		}
	}
}
