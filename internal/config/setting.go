package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Source says where a setting's value comes from.
type Source struct {
	// Kind is default, file, environment or flag.
	Kind SourceKind `json:"source"`
	// Name is the file's path, the variable or the flag; empty for a default.
	Name string `json:"name,omitempty"`
}

// SourceKind is a kind of place for settings. A later one in this list overrides the others.
type SourceKind string

// The places.
const (
	FromDefault     SourceKind = "default"
	FromFile        SourceKind = "file"
	FromEnvironment SourceKind = "environment"
	FromFlag        SourceKind = "flag"
)

// String is the kind and the name.
func (s Source) String() string {
	if s.Name == "" {
		return string(s.Kind)
	}
	return string(s.Kind) + " " + s.Name
}

// Setting is one setting as it stands.
type Setting struct {
	// Key is the name in the YAML file.
	Key string `json:"key"`
	// Value is the text form; that of a secret is masked.
	Value string `json:"value"`
	From  Source `json:"from"`
}

// masked stands for a secret that is set.
const masked = "********"

// Settings lists the settings in the schema's sequence. source returns where the value of a flag
// comes from. Fields with the tag secret:"true" are masked.
func (s *Serve) Settings(source func(flag string) Source) []Setting { return settings(*s, source) }

// settings lists the fields of a struct of settings.
func settings(schema any, source func(flag string) Source) []Setting {
	v := reflect.ValueOf(schema)
	out := make([]Setting, 0, v.NumField())
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		text := fmt.Sprint(v.Field(i).Interface())
		if list, ok := v.Field(i).Interface().([]string); ok {
			text = strings.Join(list, "; ")
		}
		if tag.Get("secret") == "true" && !v.Field(i).IsZero() {
			text = masked
		}
		flag := tag.Get("name")
		out = append(out, Setting{Key: Key(flag), Value: text, From: source(flag)})
	}
	return out
}
