package campaign

import (
	"os"
	"strings"
)

// Known lists known failures that are not fixed yet: names of cases, and beginnings of the names
// of trials.
type Known []string

// ReadKnown reads a list with one name a line. A missing list is empty.
func ReadKnown(path string) (Known, error) {
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var k Known
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			k = append(k, line)
		}
	}
	return k, nil
}

// Has reports whether the case or trial with that name is known to fail.
func (k Known) Has(name string) bool {
	for _, l := range k {
		if name == l || strings.HasPrefix(name, l+",") {
			return true
		}
	}
	return false
}
