package lint

import (
	"path"
	"strings"
	"testing"
)

// Files fit in a few screens, and a package in a person's head.
func TestSizesStayReadable(t *testing.T) {
	const maxFileLines, maxPackageLines, maxFiles = 400, 2500, 20
	type size struct{ files, lines int }
	sizes := make(map[string]size)
	for _, file := range goFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		n := lines(read(t, file))
		if n > maxFileLines {
			t.Errorf("%s has %d lines, at most %d", file, n, maxFileLines)
		}
		s := sizes[path.Dir(file)]
		sizes[path.Dir(file)] = size{s.files + 1, s.lines + n}
	}
	for dir, s := range sizes {
		if s.files > maxFiles || s.lines > maxPackageLines {
			t.Errorf("%s has %d files and %d lines, at most %d and %d: divide it", dir, s.files, s.lines, maxFiles, maxPackageLines)
		}
	}
}
