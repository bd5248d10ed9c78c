package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/kvconn/kvconn/internal/nearest"
	"github.com/kvconn/kvconn/router/policy"
)

// plainly says what is wrong with a rank's JSON in the words of its fields, not in those of the program.
func plainly(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		if wrong.Field == "" {
			return fmt.Errorf("want an object with fields, not a JSON %s", wrong.Value)
		}
		return fmt.Errorf("%s is a JSON %s: want %s", wrong.Field, wrong.Value, wanted(wrong.Type))
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok { // package json has no type for it
		name = strings.Trim(name, `"`)
		return fmt.Errorf("unknown field %q%s", name, nearest.Hint(name, fieldNames()))
	}
	return err
}

// wanted names the form of a field of a type.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct:
		return "an object with " + strings.Join(namesOf(t), ", ")
	case reflect.Slice:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a text"
	default:
		return "a whole number"
	}
}

// fieldNames are the names of all fields of a rank, those of its parts included.
func fieldNames() []string {
	names := namesOf(reflect.TypeFor[Rank]())
	for _, part := range []reflect.Type{reflect.TypeFor[Events](), reflect.TypeFor[policy.Speeds]()} {
		names = append(names, namesOf(part)...)
	}
	return names
}

// namesOf are the names of a struct's fields in JSON.
func namesOf(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}
