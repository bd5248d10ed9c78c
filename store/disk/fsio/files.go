package fsio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// AsideSuffix ends the names of files that the store cannot use and does not delete: they
// hold, or may hold, what could be read by someone else.
const AsideSuffix = ".bad"

// IsAside reports whether a file of that name was set aside.
func IsAside(name string) bool { return strings.HasSuffix(name, AsideSuffix) }

// SetAside renames a file, or a directory in the place of one, out of the way. Files that were
// set aside before keep their names.
func SetAside(f FS, path string) error {
	var taken []fs.DirEntry
	err := Again(func() (err error) { taken, err = f.ReadDir(filepath.Dir(path)); return err })
	if err != nil {
		return err
	}
	to := path + AsideSuffix
	for n := 2; slices.ContainsFunc(taken, func(e fs.DirEntry) bool { return e.Name() == filepath.Base(to) }); n++ {
		to = fmt.Sprintf("%s.%d%s", path, n, AsideSuffix)
	}
	return f.Rename(path, to)
}

// RemoveTree removes a file, or a directory with what is in it. One that is not there is no
// error.
func RemoveTree(f FS, path string) error {
	if entries, err := f.ReadDir(path); err == nil {
		for _, e := range entries {
			if err := RemoveTree(f, filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := f.Remove(path); err != nil && !IsNotExist(err) {
		return err
	}
	return nil
}

// IsFile reports whether there is surely a file of that name: neither a directory nor a link,
// which may lead to one that is not mounted.
func IsFile(f FS, path string) bool { return listed(f, path, fs.FileMode.IsRegular) }

// IsDir reports whether there is surely a directory of that name.
func IsDir(f FS, path string) bool { return listed(f, path, fs.FileMode.IsDir) }

// listed reports whether a directory can be listed and has a name of that kind. Links are not
// followed.
func listed(f FS, path string, kind func(fs.FileMode) bool) bool {
	entries, err := f.ReadDir(filepath.Dir(path))
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return e.Name() == filepath.Base(path) && kind(e.Type())
	})
}

const (
	// tries is how often [Again] tries a step, pause the time between two tries.
	tries = 4
	pause = 50 * time.Millisecond
)

// Again tries a step of an opening until it works, a few times: a failure may pass, and an
// error that counts may cost a start, or records until the next. It does not wait for a file
// that is not there.
func Again(step func() error) (err error) {
	for try := range tries {
		if try > 0 {
			time.Sleep(pause)
		}
		if err = step(); err == nil || IsNotExist(err) {
			break
		}
	}
	return err
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// OfMedium reports whether an error speaks of the place that was read or written, not of
// space, descriptors or memory.
func OfMedium(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EREMOTEIO) || errors.Is(err, unix.EILSEQ)
}
