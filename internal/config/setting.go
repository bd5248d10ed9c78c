package config

import (
	"fmt"
	"iter"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/kvconn/kvconn/internal/nearest"
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

// Settings lists the settings of a [Serve] or [Router] in the schema's sequence. source returns where the value of
// a flag comes from. Fields with the tag secret:"true" are masked.
func Settings[S Serve | Router](schema S, source func(flag string) Source) []Setting {
	v := reflect.ValueOf(schema)
	var out []Setting
	for f := range fields(v.Type()) {
		value := v.FieldByIndex(f.Index)
		text := fmt.Sprint(value.Interface())
		if list, ok := value.Interface().([]string); ok {
			text = strings.Join(list, "; ")
		}
		if f.Tag.Get("secret") == "true" && !value.IsZero() {
			text = masked
		}
		flag := f.Tag.Get("name")
		out = append(out, Setting{Key: Key(flag), Value: text, From: source(flag)})
	}
	return out
}

// fields are the fields of a schema that are settings, those of embedded structs where these are.
func fields(schema reflect.Type) iter.Seq[reflect.StructField] {
	return func(yield func(reflect.StructField) bool) {
		for _, f := range reflect.VisibleFields(schema) {
			if !f.Anonymous && !yield(f) {
				return
			}
		}
	}
}

// envPrefix begins the name of every variable that is a setting.
const envPrefix = "KVCONN_"

// CheckEnvironment looks at the variables of environ (in the form of [os.Environ]) that begin with
// KVCONN_ and are not in known. One that is near a known one is misspelt, which is an error; others are
// foreign, such as those that a pod's description sets for itself. It accepts the variables that
// Kubernetes puts into every container for a service (KVCONN_PORT for one named kvconn), and those
// of the tests (KVCONN_TEST_…).
func CheckEnvironment(environ, known []string) (foreign []string, err error) {
	var errs []error
	rests := make([]string, len(known)) // all begin alike, which must not make them near
	for i, name := range known {
		rests[i] = strings.TrimPrefix(name, envPrefix)
	}
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		switch {
		case !strings.HasPrefix(name, envPrefix), strings.HasPrefix(name, envPrefix+"TEST_"):
		case slices.Contains(known, name), isServiceVariable(name):
		default:
			near := nearest.Of(strings.TrimPrefix(name, envPrefix), rests)
			if near == "" {
				foreign = append(foreign, name)
				continue
			}
			errs = append(errs, fmt.Errorf("unknown environment variable %s, did you mean %s%s?", name, envPrefix, near))
		}
	}
	slices.Sort(foreign)
	return foreign, joined(errs)
}

// isServiceVariable recognizes the variables that Kubernetes and Docker links derive from a
// service's name (kubernetes.io, "Service: environment variables").
func isServiceVariable(name string) bool {
	matched, _ := regexp.MatchString(`_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$`, name)
	return matched
}
