// Package manual says what each setting of kvconnd is for: its group, its default and its meaning. The groups are those of
// --help, and the tables of docs/configuration.md are made from it.
package manual

//go:generate go run ./generate ../..

import "strings"

// Group is the settings that answer one question.
type Group struct {
	Title, Question string
	Settings        []Setting
}

// Setting is one setting.
type Setting struct {
	// Key is its name in a settings file.
	Key string
	// Default says in Markdown what holds without it; "" is the default that the schema has.
	Default string
	// Meaning is Markdown, with links as docs/configuration.md needs them.
	Meaning string
}

// Flag is the setting's name on a command line.
func (s *Setting) Flag() string { return strings.ReplaceAll(s.Key, "_", "-") }
