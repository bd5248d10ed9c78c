// Package doctor looks at what an engine will need before it is started, and says what to do where
// something lacks.
package doctor

import (
	"context"
	"fmt"
	"io"
)

// Level is how bad a finding is.
type Level int

// Levels of findings.
const (
	// OK: nothing is to be done.
	OK Level = iota
	// Warning: it works, and something is slower, larger or less cached than need be.
	Warning
	// Failure: the engine would not start, would not cache, or would end later.
	Failure
)

// String is the level's name in reports.
func (l Level) String() string {
	switch l {
	case OK:
		return "ok"
	case Warning:
		return "warning"
	}
	return "FAIL"
}

// MarshalText implements encoding.TextMarshaler.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Finding is what was seen of one thing.
type Finding struct {
	Name  string `json:"name"`
	Level Level  `json:"level"`
	// Detail is what was seen, Remedy what to do about it. Findings that are [OK] have no remedy.
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Worst is the worst level of findings, [OK] if there are none.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		worst = max(worst, f.Level)
	}
	return worst
}

// Print prints findings for people.
func Print(out io.Writer, findings []Finding) error {
	for _, f := range findings {
		if _, err := fmt.Fprintf(out, "%-8s %-14s %s\n", f.Level, f.Name, f.Detail); err != nil {
			return err
		}
		if f.Remedy != "" {
			if _, err := fmt.Fprintf(out, "%-8s %-14s -> %s\n", "", "", f.Remedy); err != nil {
				return err
			}
		}
	}
	return nil
}

// Machine is where the engine will run: a seam for tests.
type Machine interface {
	// Find returns the path of a program in PATH.
	Find(program string) (string, error)
	// Compiles reports whether a C++ compiler takes a source, and links it with a library.
	Compiles(ctx context.Context, compiler, source, library string) error
	// MemoryBytes is the memory of this machine or container.
	MemoryBytes() int64
	// Connect connects to a Unix socket and closes the connection.
	Connect(ctx context.Context, socket string) error
}
