package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// completes asks bash, with the script, what may follow words, whose last one is being typed.
func completes(t *testing.T, script string, words ...string) []string {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	const ask = `source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvconnd; printf '%s\n' "${COMPREPLY[@]}"`
	out, err := exec.CommandContext(t.Context(), bash, append([]string{"-c", ask, "bash", script, "kvconnd"}, words...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.Fields(string(out))
}

func scriptFor(t *testing.T, shell string) string {
	t.Helper()
	status, out, errs := kvconnd("completion", shell)
	if status != 0 || errs != "" {
		t.Fatalf("status %d, %s", status, errs)
	}
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBashCompletesCommandLines(t *testing.T) {
	script := scriptFor(t, "bash")
	for _, c := range []struct {
		words []string
		want  []string
	}{
		{[]string{"ser"}, []string{"serve"}},
		{[]string{"bench", "en"}, []string{"engine"}},
		{[]string{"serve", "--max-b"}, []string{"--max-bytes"}},
		{[]string{"serve", "--dir", "x", "--log-level", ""}, []string{"debug", "info", "warn", "error"}},
		{[]string{"serve", "--dir", ""}, nil}, // a file
		{[]string{"config", "vllm", "--ti"}, []string{"--tier"}},
		{[]string{"demo-eng"}, nil}, // hidden
	} {
		if got := completes(t, script, c.words...); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.words, got, c.want)
		}
	}
	if got := completes(t, script, ""); !slices.Contains(got, "router") || !slices.Contains(got, "completion") || slices.Contains(got, "copier") {
		t.Errorf("commands: %q", got)
	}
}

// The other shells' scripts are read by the shells themselves where there are any.
func TestScriptsOfOtherShellsAreValid(t *testing.T) {
	for shell, check := range map[string][]string{"zsh": {"-n"}, "fish": {"--no-execute"}, "bash": {"-n"}} {
		script := scriptFor(t, shell)
		b, err := os.ReadFile(script)
		if err != nil || !strings.Contains(string(b), "--max-bytes") && !strings.Contains(string(b), "-l max-bytes") {
			t.Errorf("%s: --max-bytes is missing, %v", shell, err)
		}
		program, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		if out, err := exec.CommandContext(t.Context(), program, append(check, script)...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", shell, err, out)
		}
	}
	if status, _, errs := kvconnd("completion", "tcsh"); status != exitUsage || !strings.Contains(errs, "bash") {
		t.Errorf("status %d, %s", status, errs)
	}
}

// Groups help people to find a flag: what stands outside of them is common to many commands.
func TestHelpHasGroups(t *testing.T) {
	for command, titles := range map[string][]string{
		"serve": {"Socket:", "Disk:", "Bucket:", "Host memory:"}, "router": {"Ranks:", "Which rank:"}, "replay": {"Machines:"}, "": {"Run:", "Measure and size:"},
	} {
		_, out, _ := kvconnd(append(strings.Fields(command), "--help")...)
		for _, title := range titles {
			if !strings.Contains(out, "\n"+title+"\n") {
				t.Errorf("%q: no %q in its help", command, title)
			}
		}
	}
	_, out, _ := kvconnd("serve", "--help")
	_, rest, _ := strings.Cut(out, "\nFlags:\n")
	common, _, _ := strings.Cut(rest, "\nDisk:")
	if n := strings.Count(common, "--"); n > 8 {
		t.Errorf("%d flags of serve are in no group:\n%s", n, common)
	}
}
