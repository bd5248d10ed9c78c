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

// ranksKey is the key of the list of ranks in a router's file, in place of the flag --rank.
const ranksKey = "ranks"

// keysOf are the YAML keys of a schema in the sequence of the struct.
func keysOf[S Serve | Router]() []string {
	var keys []string
	for f := range fields(reflect.TypeFor[S]()) {
		keys = append(keys, Key(f.Tag.Get("name")))
	}
	if i := slices.Index(keys, "rank"); i >= 0 {
		keys[i] = ranksKey
	}
	return keys
}

// Key is the YAML key of a flag.
func Key(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// ReadFile reads a YAML file of the settings S: their values as text, by key, and the entries of a router's list
// ranks, each as JSON. A key that the schema does not have is an error that names the nearest one.
func ReadFile[S Serve | Router](path string) (values map[string]string, ranks []json.RawMessage, err error) {
	b, err := readBounded(path)
	if err == nil {
		values, ranks, err = parse[S](b)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("configuration file %s: %w", path, err)
	}
	return values, ranks, nil
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

func parse[S Serve | Router](b []byte) (values map[string]string, ranks []json.RawMessage, err error) {
	nodes, err := parseNodes(b)
	if err != nil {
		return nil, nil, err
	}
	known := keysOf[S]()
	values = make(map[string]string, len(nodes))
	var errs []error
	for key, node := range nodes {
		switch {
		case !slices.Contains(known, key):
			errs = append(errs, fmt.Errorf("unknown key %q%s", key, nearest.Hint(key, known)))
		case key == ranksKey:
			if ranks, err = parseRanks(&node); err != nil {
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
	return values, ranks, joined(errs)
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

// parseRanks turns the list of ranks into JSON. A rank without an id gets its place in the list as its id.
func parseRanks(node *yaml.Node) ([]json.RawMessage, error) {
	if node.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: ranks wants a list", node.Line)
	}
	var list []json.RawMessage
	for i, entry := range node.Content {
		var fields map[string]any
		if err := entry.Decode(&fields); err != nil || fields == nil {
			return nil, fmt.Errorf("line %d: rank %d wants fields", entry.Line, i)
		}
		if _, ok := fields["id"]; !ok {
			fields["id"] = i
		}
		b, err := json.Marshal(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: rank %d: %w", entry.Line, i, err)
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
