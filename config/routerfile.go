package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

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
	var nodes map[string]yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&nodes); err != nil && !errors.Is(err, io.EOF) { // EOF: an empty file
		return nil, err
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	return nodes, nil
}
