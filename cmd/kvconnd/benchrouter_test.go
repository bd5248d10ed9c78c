package main

import (
	"strings"
	"testing"
)

func TestBenchRouterUsageErrorsNameTheFlag(t *testing.T) {
	for want, args := range map[string][]string{
		"--blocks is 0":      {"bench", "router", "--blocks", "0"},
		"--ranks is -1":      {"bench", "router", "--ranks=-1"},
		"--background is 0":  {"bench", "router", "--background", "0"},
		"Ranks 5000: 1 to 4": {"bench", "router", "--ranks", "5000"},
	} {
		if status, out, errs := kvconnd(args...); status == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q, %q; want %q", args, status, out, errs, want)
		}
	}
}
