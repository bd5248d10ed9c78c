package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readBounded reads a file of at most [MaxFileBytes].
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err == nil && len(b) > MaxFileBytes {
		err = fmt.Errorf("more than %d bytes", MaxFileBytes)
	}
	return b, err
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
