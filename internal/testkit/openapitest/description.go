// Package openapitest reads OpenAPI descriptions, so that tests of HTTP services can compare them
// with what is served.
package openapitest

import (
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// Description is as much of OpenAPI as the tests look at.
type Description struct {
	OpenAPI string `yaml:"openapi"`
	// Paths are the operations by path and method, in lower case.
	Paths      map[string]map[string]Operation `yaml:"paths"`
	Components struct {
		Schemas map[string]Schema `yaml:"schemas"`
	} `yaml:"components"`
}

// Operation is one method of a path, with its responses by status code.
type Operation struct {
	OperationID string `yaml:"operationId"`
	Parameters  []struct {
		Name string `yaml:"name"`
	} `yaml:"parameters"`
	Responses map[string]Response `yaml:"responses"`
}

// Response is the description of an answer, and its content by type.
type Response struct {
	Description string         `yaml:"description"`
	Content     map[string]any `yaml:"content"`
}

// Schema is a described object.
type Schema struct {
	Required   []string       `yaml:"required"`
	Properties map[string]any `yaml:"properties"`
}

// Parse reads a description, which must be of OpenAPI 3.1.
func Parse(t *testing.T, text string) *Description {
	t.Helper()
	d := new(Description)
	if err := yaml.Unmarshal([]byte(text), d); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(d.OpenAPI, "3.1") {
		t.Errorf("OpenAPI %q", d.OpenAPI)
	}
	return d
}

// Fields lists the JSON names of a struct, those of embedded ones included.
func Fields(v reflect.Type) (names []string) {
	for i := range v.NumField() {
		f := v.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Pointer:
			names = append(names, Fields(f.Type.Elem())...)
		case f.Anonymous && name == "":
			names = append(names, Fields(f.Type)...)
		default:
			names = append(names, name)
		}
	}
	return names
}
