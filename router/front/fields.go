package front

import (
	"bytes"
	"encoding/json"
	"errors"
)

// Fields are the fields of a JSON object.
type Fields map[string]json.RawMessage

// maxFields bounds a request's fields, which take many times the memory of their text.
const maxFields = 1024

var errFields = errors.New("too many fields")

// UnmarshalJSON reads an object of a bounded number of fields, or null. Called by itself, not by package json, it saves
// half the time.
func (f *Fields) UnmarshalJSON(b []byte) error {
	if manyFields(b) {
		return errFields
	}
	return json.Unmarshal(b, (*map[string]json.RawMessage)(f))
}

// manyFields reports whether an object has more than maxFields. What is not JSON has any number.
func manyFields(object []byte) bool {
	if bytes.Count(object, []byte{':'}) <= maxFields {
		return false
	}
	fields, depth, quoted := 0, 0, false
	for i := 0; i < len(object); i++ {
		switch c := object[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ':' && depth == 1:
			fields++
		}
	}
	return fields > maxFields
}

// Read reads a field into to if it is there and not null.
func (f Fields) Read(name string, to any) error {
	if raw := f[name]; len(raw) > 0 && json.Unmarshal(raw, to) != nil {
		return BadRequest("%s has the wrong type", name)
	}
	return nil
}
