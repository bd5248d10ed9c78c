package manual

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"github.com/kvconn/kvconn/internal/config"
)

// Path is the document, from the repository's root.
const Path = "docs/configuration.md"

// The lines around each part of it that is made.
const (
	begin = "<!-- Made by go generate ./internal/manual: settings of kvconnd %s. -->\n"
	end   = "<!-- End of what is made. -->\n"
)

// Document returns the document with its tables as they should be; root is the repository's.
func Document(root string) ([]byte, error) {
	doc, err := os.ReadFile(filepath.Join(root, Path))
	if err != nil {
		return nil, fmt.Errorf("manual: %w", err)
	}
	for _, part := range [...]struct {
		command string
		made    []byte
	}{
		{"serve", tables(Serve(), reflect.TypeFor[config.Serve]())},
		{"router", tables(Router(), reflect.TypeFor[config.Router]())},
	} {
		first := fmt.Appendf(nil, begin, part.command)
		before, rest, found := bytes.Cut(doc, first)
		_, after, ends := bytes.Cut(rest, []byte(end))
		if !found || !ends {
			return nil, errors.New("manual: " + Path + " does not say where the settings of kvconnd " + part.command + " begin and end")
		}
		doc = bytes.Join([][]byte{before, first, part.made, []byte(end), after}, nil)
	}
	return doc, nil
}

// Write writes the document below the repository's root.
func Write(root string) error {
	doc, err := Document(root)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, Path), doc, 0o644); err != nil {
		return fmt.Errorf("manual: %w", err)
	}
	return nil
}

// tables has one table for each group of the settings of a schema.
func tables(groups []Group, schema reflect.Type) []byte {
	defaults := make(map[string]string)
	for _, f := range reflect.VisibleFields(schema) {
		if name, ok := f.Tag.Lookup("name"); ok {
			defaults[config.Key(name)] = defaultOf(&f)
		}
	}
	var out bytes.Buffer
	for i := range groups {
		g := &groups[i]
		fmt.Fprintf(&out, "\n### %s\n\n%s\n\n| setting | default | meaning |\n|---|---|---|\n", g.Title, g.Question)
		for j := range g.Settings {
			s := &g.Settings[j]
			standard := s.Default
			if standard == "" {
				standard = defaults[s.Key]
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s |\n", s.Key, standard, s.Meaning)
		}
	}
	out.WriteString("\n")
	return out.Bytes()
}

// defaultOf is what a setting is if nothing sets it.
func defaultOf(f *reflect.StructField) string {
	standard, ok := f.Tag.Lookup("default")
	switch {
	case f.Type.Kind() == reflect.Bool:
		return "`false`"
	case !ok:
		return "none"
	case standard == "0B":
		return "`0`"
	}
	return "`" + standard + "`"
}
