package tenantfile

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// entryError is an error of the tenant at a place of the list, or of the document's default quota if the place is negative.
type entryError struct {
	place int
	err   error
}

func (e *entryError) Error() string {
	if e.place < 0 {
		return e.err.Error()
	}
	return fmt.Sprintf("tenant %d: %v", e.place+1, e.err)
}

func (e *entryError) Unwrap() error { return e.err }

// lineOf is the line of a file's text that has the entry which e is about, 0 if it is not found.
func lineOf(text []byte, e *entryError) int {
	var root yaml.Node
	if yaml.Unmarshal(text, &root) != nil || len(root.Content) == 0 {
		return 0
	}
	top := resolved(root.Content[0])
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], resolved(top.Content[i+1])
		switch {
		case e.place < 0 && key.Value == "default_max_bytes":
			return key.Line
		case key.Value == "tenants" && e.place >= 0 && e.place < len(value.Content):
			return value.Content[e.place].Line
		}
	}
	return 0
}

// resolved is what an alias stands for.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// maxErrors and maxErrorBytes bound what is said of a file that is wrong in many lines.
const maxErrors, maxErrorBytes = 5, 200

// short leaves the first errors of a file: one mistake may be in each of its lines.
func short(err error) error {
	wrong := new(yaml.TypeError)
	if !errors.As(err, &wrong) {
		return err
	}
	few := new(yaml.TypeError)
	for _, e := range wrong.Errors[:min(len(wrong.Errors), maxErrors)] {
		few.Errors = append(few.Errors, strings.ToValidUTF8(e[:min(len(e), maxErrorBytes)], ""))
	}
	if more := len(wrong.Errors) - maxErrors; more > 0 {
		few.Errors = append(few.Errors, fmt.Sprintf("and %d more", more))
	}
	return few
}
