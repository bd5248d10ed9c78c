package journal

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Generation 0 is in the journal's directory itself, each later one in a directory of its
// own below it. A later one counts from the moment its file COMPLETE is there, which is
// made last, when all else is durable. So a crash at any step leaves the old generation or
// the new one, and no step has to be undone.
const (
	generationPrefix = "gen-"
	completeFile     = "COMPLETE"
)

func generationDir(fs vfs.FS, dir string, number uint64) string {
	if number == 0 {
		return dir
	}
	return fs.PathJoin(dir, fmt.Sprintf("%s%d", generationPrefix, number))
}

// generations lists the numbers of the generations below dir, complete or not.
func generations(fs vfs.FS, dir string) (numbers []uint64, others []string, err error) {
	names, err := fs.List(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, generationPrefix)
		if n, err := strconv.ParseUint(digits, 10, 62); ok && err == nil && n > 0 {
			numbers = append(numbers, n)
			continue
		}
		others = append(others, name)
	}
	return numbers, others, nil
}

// locate returns the number of the newest complete generation.
func locate(fs vfs.FS, dir string) (newest uint64, err error) {
	numbers, _, err := generations(fs, dir)
	if err != nil {
		return 0, err
	}
	for _, n := range numbers {
		switch _, err := fs.Stat(fs.PathJoin(generationDir(fs, dir, n), completeFile)); {
		case err == nil:
			newest = max(newest, n)
		case !errors.Is(err, os.ErrNotExist):
			return 0, err
		}
	}
	return newest, nil
}

// removeLeftovers removes what is left of generations that do not count.
func removeLeftovers(o Options, keep uint64) {
	if err := removeGenerations(o, func(n uint64) bool { return n != keep }); err != nil {
		o.Logger.Warn("journal: cannot remove what is left of an earlier one", "err", err,
			"remedy", "none: it is tried again at the next start")
	}
}

// removeGenerations removes the files of the generations whose numbers are gone.
func removeGenerations(o Options, gone func(number uint64) bool) error {
	numbers, others, err := generations(o.FS, o.Dir)
	for _, n := range numbers {
		if gone(n) {
			err = errors.Join(err, o.FS.RemoveAll(generationDir(o.FS, o.Dir, n)))
		}
	}
	for _, name := range others {
		if gone(0) {
			err = errors.Join(err, o.FS.RemoveAll(o.FS.PathJoin(o.Dir, name)))
		}
	}
	return err
}
