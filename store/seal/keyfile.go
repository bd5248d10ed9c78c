package seal

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

const (
	// linePrefix begins the line of a key; 32 bytes in base64 follow.
	linePrefix = "kvconn-key-1:"
	// maxFileBytes and maxKeys bound a key file. A rotation needs two keys.
	maxFileBytes = 64 << 10
	maxKeys      = 64
	// othersMode are the bits of a mode that a key file must not have: it is for its owner alone,
	// and no program. groupMode is the one that root's files may have.
	othersMode fs.FileMode = 0o177
	groupMode  fs.FileMode = 0o040
)

// Load reads a key file. Each line is a key; empty lines, and lines that begin with '#', are passed
// over. The first key seals. The file must be a regular one with mode 0600 or 0400; one of root's may be readable by
// its group, too, where the process is another user's: so Kubernetes mounts a Secret. Errors say what
// to do, and never show any of its content.
func Load(file string) (*Ring, error) {
	// A pipe must not make the daemon wait for a writer.
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("key file: %w: make one with %s", err, recipe(file))
	}
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if err := checkFile(file, info, os.Geteuid()); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	defer clear(b)
	if err != nil {
		return nil, fmt.Errorf("read key file %s: %w", file, err)
	}
	keys, err := parse(b)
	defer clear(keys)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", file, err)
	}
	r, err := New(keys...)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", file, err)
	}
	return r, nil
}

// checkFile refuses what others may read, and what is no file. user is the process's.
func checkFile(file string, info fs.FileInfo, user int) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("key file %s is not a regular file", file)
	}
	forbidden := othersMode
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid == 0 && user != 0 {
		// The process can read it by its group alone: root gave it to that group.
		forbidden &^= groupMode
	}
	if mode := info.Mode().Perm(); mode&forbidden != 0 {
		return fmt.Errorf("key file %s has mode %04o, and must be its owner's alone: run chmod 600 %s, and make new keys if others may have read it", file, mode, file)
	}
	if info.Size() > maxFileBytes {
		return fmt.Errorf("key file %s has %d bytes, at most %d", file, info.Size(), maxFileBytes)
	}
	return nil
}

// Create draws a key and writes a key file with it, mode 0600. It refuses a file that is there.
func Create(file string) (*Ring, error) {
	var secret Key
	defer clear(secret[:])
	_, _ = rand.Read(secret[:]) // it never fails
	r, err := New(secret)
	if err != nil {
		return nil, fmt.Errorf("make key file %s: %w", file, err)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make key file: %w", err)
	}
	line := linePrefix + base64.StdEncoding.EncodeToString(secret[:]) + "\n"
	_, err = f.WriteString(line)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, fmt.Errorf("make key file %s: %w", file, errors.Join(err, os.Remove(file)))
	}
	return r, nil
}

// recipe is a command that makes a key file.
func recipe(file string) string {
	return fmt.Sprintf(`(umask 077; echo "%s$(head -c %d /dev/urandom | base64)" >%s)`, linePrefix, KeyBytes, file)
}

// parse returns the keys in the content of a key file, in their sequence.
func parse(b []byte) ([]Key, error) {
	if len(b) > maxFileBytes {
		return nil, fmt.Errorf("more than %d bytes", maxFileBytes)
	}
	var keys []Key
	number := 0
	for line := range bytes.Lines(b) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		k, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if len(keys) == maxKeys {
			return nil, fmt.Errorf("line %d: more than %d keys", number, maxKeys)
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("there is no key in it: a line with a key is %s and %d random bytes in base64", linePrefix, KeyBytes)
	}
	return keys, nil
}

// parseLine returns the key of a line. Its errors show nothing of the line, which may be a key that
// was mistyped.
func parseLine(line []byte) (k Key, err error) {
	text, found := bytes.CutPrefix(line, []byte(linePrefix))
	if !found {
		return k, fmt.Errorf("it does not begin with %s", linePrefix)
	}
	encoding := base64.StdEncoding.Strict()
	if want := encoding.EncodedLen(KeyBytes); len(text) != want {
		return k, fmt.Errorf("%d characters follow %s, and not %d: a key is %d bytes in base64", len(text), linePrefix, want, KeyBytes)
	}
	var decoded [KeyBytes + 1]byte // padding may stand for one byte or two
	defer clear(decoded[:])
	if n, err := encoding.Decode(decoded[:], text); err != nil || n != KeyBytes {
		return k, errors.New("what follows " + linePrefix + " is not base64 of a key")
	}
	return Key(decoded[:KeyBytes]), nil
}
