package daemon

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

// ErrForeign says that a directory holds files of others and no store.
var ErrForeign = errors.New("directory is not empty and holds no store")

// refuseForeign refuses a directory that somebody else uses. A store that has lost some of
// its files is still one.
func refuseForeign(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("look into the store directory: %w", err)
	}
	defer func() { _ = f.Close() }()
	const enough = 256 // a store has its own names among few others
	names, err := f.Readdirnames(enough)
	if len(names) == 0 {
		return nil // an error to read it is the store's to report
	}
	ours := func(name string) bool {
		// Names that a new store, or the mount point of one, has.
		return slices.Contains([]string{"FORMAT", "LOCK", "segments", "index", "namespaces", infoFile}, name)
	}
	others := slices.DeleteFunc(names, func(name string) bool { return name == "lost+found" })
	if err != nil || len(others) == 0 || slices.ContainsFunc(others, ours) {
		return nil
	}
	return fmt.Errorf("%s: %w, but %q: give --dir an empty directory, or one that is not there yet", dir, ErrForeign, others[0])
}
