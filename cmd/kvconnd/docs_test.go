package main

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/testkit/docs"
)

// commandLines finds the command lines of kvconnd in a line of code.
func commandLines(code string) (lines [][]string) {
	for _, m := range regexp.MustCompile(`(?:^|[^\w-])kvconnd((?: +(?:'[^']*'|[\w./:=,*@+-]+))+)`).FindAllStringSubmatch(code, -1) {
		if args := strings.Fields(strings.ReplaceAll(m[1], "'", "")); args[0] != "cannot" { // the beginning of a message
			lines = append(lines, args)
		}
	}
	return lines
}

// Every command line of kvconnd that a document shows is one, and so is every flag that it names.
func TestDocumentsShowCommandsThatExist(t *testing.T) {
	parser, err := newParser(t.Context(), new(cli), &terminal.Streams{Out: io.Discard, Err: io.Discard}, new(settings.Resolver), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	var flags []string
	if err := kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			flags = append(flags, "--"+flag.Name)
		}
		return next(nil)
	}); err != nil {
		t.Fatal(err)
	}
	others := []string{ // vLLM's
		"--kv-transfer-config", "--kv-events-config", "--data-parallel-size", "--data-parallel-hybrid-lb", "--data-parallel-rank", "--port", "--block-size",
		"--prefix-caching-hash-algo", "--prefix-cache-retention-interval", "--otlp-traces-endpoint", "--hf-overrides", "--hf-config-path",
		// SGLang's
		"--hicache-size", "--hicache-host-memory-mode", "--hicache-storage-prefetch-policy", "--hicache-storage-backend-extra-config",
		"--enable-cache-report", "--enable-lora", "--lora-paths", "--uno-lora-path", "--weight-cache-mode", "--quantize-and-serve", "--forward-hooks", "--model-path",
		// integration/gpu/check.sh's
		"--pack", "--stand-in",
		// integration/sglang/bench.py's
		"--bursts", "--again",
		// integration/bench/run.py's
		"--faults", "--workloads",
		// integration/vllm/e2e.py's
		"--also", "--times",
	}
	scripts := []string{"integration/README.md", "integration/bench/README.md"} // name flags of scripts
	found := 0
	for _, d := range docs.All(t) {
		for _, code := range slices.Concat(d.Lines, d.Spans) {
			for _, args := range commandLines(code) {
				found++
				// Trace reads the line without the checks of values, which shortened examples do not pass.
				if ctx, err := kong.Trace(parser, args); err != nil || ctx.Error != nil {
					t.Errorf("%s shows kvconnd %s: %v %v", d.Path, strings.Join(args, " "), err, ctx.Error)
				}
			}
			if !strings.HasPrefix(code, "--") || slices.Contains(scripts, d.Path) {
				continue
			}
			for _, word := range strings.Fields(code) {
				flag, _, _ := strings.Cut(word, "=")
				if strings.HasPrefix(flag, "--") && !slices.Contains(flags, flag) && !slices.Contains(others, flag) {
					t.Errorf("%s names the flag %s, which no command has", d.Path, flag)
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d command lines were found", found)
	}
}
