package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxFileBytes bounds a configuration file.
const MaxFileBytes = 1 << 20

// keysOf are the YAML keys of a schema in the sequence of the struct.
func keysOf(t reflect.Type) []string {
	out := make([]string, 0, t.NumField())
	for i := range t.NumField() {
		out = append(out, Key(t.Field(i).Tag.Get("name")))
	}
	return out
}

// Key is the YAML key of a flag.
func Key(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// ReadFile reads a YAML file of settings and returns their values as text, by key. A key
// that the schema does not have is an error that names the nearest one.
func ReadFile(path string) (map[string]string, error) {
	b, err := readBounded(path)
	var values map[string]string
	if err == nil {
		values, err = parse(b)
	}
	if err != nil {
		return nil, fmt.Errorf("configuration file %s: %w", path, err)
	}
	return values, nil
}

func parse(b []byte) (map[string]string, error) {
	nodes, err := parseNodes(b)
	if err != nil {
		return nil, err
	}
	values, errs := singleValues(nodes, keysOf(reflect.TypeFor[Serve]()))
	return values, joined(errs)
}

// singleValues returns the values of nodes, and an error for each node whose key is not known or
// whose value is not a single one.
func singleValues(nodes map[string]yaml.Node, known []string) (map[string]string, []error) {
	values := make(map[string]string, len(nodes))
	var errs []error
	for key, node := range nodes {
		switch {
		case !slices.Contains(known, key):
			errs = append(errs, fmt.Errorf("unknown key %q, did you mean %q?", key, Nearest(key, known)))
		case node.Kind != yaml.ScalarNode:
			errs = append(errs, fmt.Errorf("line %d: %s wants a single value", node.Line, key))
		case node.Tag == "!!null":
			errs = append(errs, fmt.Errorf("line %d: %s has no value: give one, or leave the key out", node.Line, key))
		default:
			values[key] = node.Value
		}
	}
	return values, errs
}

// joined joins errors in a sequence that does not depend on chance.
func joined(errs []error) error {
	sort.Slice(errs, func(i, j int) bool { return errs[i].Error() < errs[j].Error() })
	return errors.Join(errs...)
}

// Nearest returns the candidate with the smallest edit distance to s, "" if there is none.
func Nearest(s string, candidates []string) string {
	best, bestDistance := "", -1
	for _, c := range candidates {
		if d := distance(s, c); bestDistance < 0 || d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the Levenshtein distance of a and b in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
