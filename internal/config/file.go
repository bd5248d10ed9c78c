package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kvconn/kvconn/internal/nearest"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 1 << 20

// The keys of the lists in a router's file, in place of the flags --rank and --discover.
const (
	ranksKey     = "ranks"
	discoveryKey = "discovery"
)

// Lists are the entries of the lists in a router's file, each as JSON.
type Lists struct {
	Ranks, Discovery []json.RawMessage
}

// Settings lists the entries of the lists, which come from the file at path.
func (l *Lists) Settings(path string) (all []Setting) {
	for _, list := range []struct {
		key     string
		entries []json.RawMessage
	}{{ranksKey, l.Ranks}, {discoveryKey, l.Discovery}} {
		for i, entry := range list.entries {
			all = append(all, Setting{Key: fmt.Sprintf("%s[%d]", list.key, i), Value: string(entry), From: Source{Kind: FromFile, Name: path}})
		}
	}
	return all
}

// keysOf are the YAML keys of a schema in the sequence of the struct.
func keysOf[S Serve | Router]() []string {
	var keys []string
	for f := range fields(reflect.TypeFor[S]()) {
		keys = append(keys, Key(f.Tag.Get("name")))
	}
	for flag, list := range map[string]string{"rank": ranksKey, "discover": discoveryKey} {
		if i := slices.Index(keys, flag); i >= 0 {
			keys[i] = list
		}
	}
	return keys
}

// Key is the YAML key of a flag.
func Key(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// ReadFile reads a YAML file of the settings S: their values as text, by key, and the lists of a router. A key that
// the schema does not have is an error that names the nearest one.
func ReadFile[S Serve | Router](path string) (values map[string]string, lists Lists, err error) {
	b, err := readBounded(path)
	if err == nil {
		values, lists, err = parse[S](b)
	}
	if err != nil {
		return nil, Lists{}, fmt.Errorf("configuration file %s: %w", path, err)
	}
	return values, lists, nil
}

// readBounded reads a file of at most [maxFileBytes].
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(b) > maxFileBytes {
		err = fmt.Errorf("more than %d bytes", maxFileBytes)
	}
	return b, err
}

func parse[S Serve | Router](b []byte) (values map[string]string, lists Lists, err error) {
	nodes, err := parseNodes(b)
	if err != nil {
		return nil, lists, err
	}
	known := keysOf[S]()
	values = make(map[string]string, len(nodes))
	var errs []error
	for key, node := range nodes {
		switch {
		case !slices.Contains(known, key):
			errs = append(errs, fmt.Errorf("unknown key %q%s", key, nearest.Hint(key, known)))
		case key == ranksKey:
			if lists.Ranks, err = parseList(key, &node); err != nil {
				errs = append(errs, err)
			}
		case key == discoveryKey:
			if lists.Discovery, err = parseList(key, &node); err != nil {
				errs = append(errs, err)
			}
		case node.Kind != yaml.ScalarNode:
			errs = append(errs, fmt.Errorf("line %d: %s wants a single value", node.Line, key))
		case node.Tag == "!!null":
			errs = append(errs, fmt.Errorf("line %d: %s has no value: give one, or leave the key out", node.Line, key))
		default:
			values[key] = node.Value
		}
	}
	return values, lists, joined(errs)
}

// parseNodes reads the keys of one YAML document.
func parseNodes(b []byte) (map[string]yaml.Node, error) {
	var document yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&document); errors.Is(err, io.EOF) { // an empty file
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	root := &document
	if root.Kind == yaml.DocumentNode {
		root = root.Content[0]
	}
	if root.Kind != yaml.MappingNode && root.Tag != "!!null" {
		return nil, fmt.Errorf("line %d: want settings, one 'key: value' a line", root.Line)
	}
	var nodes map[string]yaml.Node
	err := root.Decode(&nodes)
	if wrong := new(yaml.TypeError); errors.As(err, &wrong) {
		err = errors.New(strings.Join(wrong.Errors, "; "))
	}
	return nodes, err
}

// parseList turns a list into JSON. A rank without an id gets its place in the list as its id.
func parseList(key string, node *yaml.Node) ([]json.RawMessage, error) {
	if node.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: %s wants a list", node.Line, key)
	}
	var list []json.RawMessage
	for i, entry := range node.Content {
		var fields map[string]any
		if err := entry.Decode(&fields); err != nil || fields == nil {
			return nil, fmt.Errorf("line %d: %s[%d] wants fields", entry.Line, key, i)
		}
		if _, ok := fields["id"]; !ok && key == ranksKey {
			fields["id"] = i
		}
		b, err := json.Marshal(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s[%d]: %w", entry.Line, key, i, err)
		}
		list = append(list, b)
	}
	return list, nil
}

// joined joins errors in a sequence that does not depend on chance.
func joined(errs []error) error {
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
