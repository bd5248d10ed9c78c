// Package version says which kvconn this is. The number stands in number.txt and nowhere else:
// programs, the Python distribution, packages and images take it from there.
package version

import (
	_ "embed"
	"runtime"
	"runtime/debug"
	"strings"
)

//go:embed number.txt
var number string

// The linker sets these for what is released (integration/release), and then the build's own
// settings are not asked: they are missing from builds in some forms of a checkout.
var commit, commitTime, modified string

// Number is the version of kvconn, such as "1.2.3".
func Number() string { return strings.TrimSpace(number) }

// Server is the name and version that the daemon and the router show to clients and people.
func Server() string { return "kvconnd/" + Number() }

// Build says what a program was built from. What its builder did not know is empty or false.
type Build struct {
	Version string `json:"version"`
	// Commit and CommitTime (RFC 3339, UTC) are of the checkout; Modified, if it had changes that
	// were not committed.
	Commit     string `json:"commit,omitempty"`
	CommitTime string `json:"commit_time,omitempty"`
	Modified   bool   `json:"modified,omitempty"`
	// Go is the version of the compiler, Platform what the program runs on: OS/architecture.
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// GPU is set if the program can load a GPU's driver.
	GPU bool `json:"gpu"`
}

// Describe returns what this program was built from; gpu is the build's GPU support.
func Describe(gpu bool) Build {
	b := Build{Version: Number(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, GPU: gpu}
	if commit != "" {
		b.Commit, b.CommitTime, b.Modified = commit, commitTime, modified == "true"
	} else if info, ok := debug.ReadBuildInfo(); ok {
		b.take(info.Settings)
	}
	return b
}

// take takes from the settings of a build what is of the checkout.
func (b *Build) take(settings []debug.BuildSetting) {
	for _, s := range settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.CommitTime = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
}

// String is the build in one line.
func (b Build) String() string {
	parts := []string{b.Platform, b.Go}
	if b.Commit != "" {
		commit := "commit " + b.Commit[:min(len(b.Commit), 12)]
		if b.Modified {
			commit += " with changes"
		}
		parts = append(parts, commit)
	}
	if !b.GPU {
		parts = append(parts, "without GPU support")
	}
	return "kvconnd/" + b.Version + " (" + strings.Join(parts, ", ") + ")"
}
