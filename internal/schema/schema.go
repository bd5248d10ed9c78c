// Package schema describes the settings files of kvconnd as JSON Schemas, by which editors complete and check them. They are
// made from the settings' own types, so that they can't lack one.
package schema

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/router/discover"
	"github.com/kvconn/kvconn/router/registry"
)

// Schema is a JSON Schema, draft 2020-12, of one value or file.
type Schema struct {
	Draft       string             `json:"$schema,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Type        []string           `json:"type,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	Pattern     string             `json:"pattern,omitempty"`
	Minimum     *int               `json:"minimum,omitempty"`
	Maximum     *int               `json:"maximum,omitempty"`
	Default     any                `json:"default,omitempty"`
	WriteOnly   bool               `json:"writeOnly,omitempty"`
	Properties  map[string]*Schema `json:"properties,omitempty"`
	// Closed is false for objects that have the properties alone.
	Closed   *bool    `json:"additionalProperties,omitempty"`
	Required []string `json:"required,omitempty"`
	Items    *Schema  `json:"items,omitempty"`
}

const draft = "https://json-schema.org/draft/2020-12/schema"

// Texts of values that are more than a number.
const (
	sizePattern     = `^ *[0-9]*\.?[0-9]+ *([kKmMgGtT]([iI]?[bB]?)|[bB])? *$`
	percentPattern  = `^ *([0-9]*\.?[0-9]+ *([kKmMgGtT]([iI]?[bB]?)|[bB])?|([0-9]{1,2}(\.[0-9]*)?|\.[0-9]+) *%)? *$`
	durationPattern = `^[+-]?(0|([0-9]*\.?[0-9]+(ns|us|µs|μs|ms|s|m|h))+)$`
	idsPattern      = `^ *([0-9]+ *(, *[0-9]+ *)*)?$`
	modePattern     = `^ *((0o|0)?[1-7][0-7]{0,2})? *$`
)

// Serve describes the file of `kvconnd serve --config`.
func Serve() *Schema { return file("Settings of kvconnd serve", reflect.TypeFor[config.Serve]()) }

// Router describes the file of `kvconnd router --config`.
func Router() *Schema {
	s := file("Settings of kvconnd router", reflect.TypeFor[config.Router]())
	for flag, list := range map[string]struct {
		key   string
		entry reflect.Type
	}{"rank": {"ranks", reflect.TypeFor[registry.Rank]()}, "discover": {"discovery", reflect.TypeFor[discover.Source]()}} {
		delete(s.Properties, flag)
		entry := object(list.entry)
		if list.key == "ranks" {
			entry.Required = []string{"model", "endpoint"} // an id is the place in the list
		}
		s.Properties[list.key] = &Schema{Type: []string{"array"}, Items: entry}
	}
	s.Properties["ranks"].Description = "Ranks that requests are sent to."
	s.Properties["discovery"].Description = "Where ranks are looked for while the router runs."
	return s
}

// file describes a struct of settings by its tags.
func file(title string, settings reflect.Type) *Schema {
	s := closed()
	s.Draft, s.Title = draft, title
	for _, f := range reflect.VisibleFields(settings) {
		if f.Anonymous {
			continue
		}
		p := setting(f.Type)
		p.Description = f.Tag.Get("help")
		p.WriteOnly = f.Tag.Get("secret") == "true"
		if values := f.Tag.Get("enum"); values != "" {
			p.Enum = strings.Split(values, ",")
		}
		p.Default = defaultOf(f)
		s.Properties[config.Key(f.Tag.Get("name"))] = p
	}
	return s
}

// setting describes a value as a settings file has it: any text that the flag takes, and the numbers and truth values that YAML
// has of its own.
func setting(t reflect.Type) *Schema {
	switch t {
	case reflect.TypeFor[config.Bytes]():
		return &Schema{Type: []string{"string", "number"}, Pattern: sizePattern, Minimum: new(int)}
	case reflect.TypeFor[config.Space](), reflect.TypeFor[config.Cap]():
		return &Schema{Type: []string{"string", "number"}, Pattern: percentPattern, Minimum: new(int)}
	case reflect.TypeFor[config.IDs]():
		return &Schema{Type: []string{"string", "integer"}, Pattern: idsPattern, Minimum: new(int)}
	case reflect.TypeFor[config.Mode]():
		return &Schema{Type: []string{"string", "integer"}, Pattern: modePattern, Minimum: new(int)}
	case reflect.TypeFor[time.Duration]():
		// A number has no unit, so it can only be 0.
		return &Schema{Type: []string{"string", "integer"}, Pattern: durationPattern, Minimum: new(int), Maximum: new(int)}
	}
	switch t.Kind() {
	case reflect.String:
		// YAML takes a token or a name of digits alone for a number.
		return &Schema{Type: []string{"string", "number"}}
	case reflect.Bool:
		return &Schema{Type: []string{"boolean"}}
	case reflect.Int:
		return &Schema{Type: []string{"integer"}}
	case reflect.Float64:
		return &Schema{Type: []string{"number"}}
	case reflect.Slice:
		return &Schema{Type: []string{"array"}}
	}
	panic(fmt.Sprintf("schema: settings have no type %s", t))
}

// defaultOf is the default that a field's tag has, nil for one that depends on the machine.
func defaultOf(f reflect.StructField) any {
	text := f.Tag.Get("default")
	switch f.Type.Kind() {
	case reflect.Bool:
		return text == "true"
	case reflect.Int, reflect.Float64:
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			return n
		}
	}
	if text == "" || text == "0B" {
		return nil
	}
	return text
}

// object describes a struct by the JSON that it is read from.
func object(t reflect.Type) *Schema {
	s := closed()
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			s.Properties[name] = member(f.Type)
		}
	}
	return s
}

func member(t reflect.Type) *Schema {
	switch t {
	case reflect.TypeFor[registry.Engine]():
		return &Schema{Type: []string{"string"}, Enum: []string{string(registry.VLLM), string(registry.SGLang), string(registry.TensorRTLLM)}}
	case reflect.TypeFor[registry.DPMode]():
		return &Schema{Type: []string{"string"}, Enum: []string{string(registry.External), string(registry.Internal), string(registry.Hybrid)}}
	case reflect.TypeFor[discover.Duration]():
		return &Schema{Type: []string{"string"}, Pattern: durationPattern}
	case reflect.TypeFor[json.RawMessage](): // a rank whose address is not known yet
		rank := object(reflect.TypeFor[registry.Rank]())
		rank.Required = []string{"model", "endpoint"}
		return rank
	}
	switch t.Kind() {
	case reflect.String:
		return &Schema{Type: []string{"string"}}
	case reflect.Bool:
		return &Schema{Type: []string{"boolean"}}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return &Schema{Type: []string{"integer"}, Minimum: new(int)}
	case reflect.Float64:
		return &Schema{Type: []string{"number"}, Minimum: new(int)}
	case reflect.Slice:
		return &Schema{Type: []string{"array"}, Items: member(t.Elem())}
	case reflect.Pointer:
		return member(t.Elem())
	case reflect.Struct:
		return object(t)
	}
	panic(fmt.Sprintf("schema: files have no type %s", t))
}

// closed is an object that has no other properties than those that are added.
func closed() *Schema {
	return &Schema{Type: []string{"object"}, Properties: make(map[string]*Schema), Closed: new(bool)}
}
