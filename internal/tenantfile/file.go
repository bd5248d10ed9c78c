// Package tenantfile is the file that names tenants, and says how much of the disk each may take.
package tenantfile

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/quota"
)

// Tenant is one that the file names.
type Tenant struct {
	Name string
	ID   tenants.ID
	// MaxBytes is its quota on disk, 0 if it has none of its own.
	MaxBytes int64
}

// File is what the file says.
type File struct {
	Tenants []Tenant
	// DefaultMaxBytes is the quota of each tenant without one of its own, 0 for none.
	DefaultMaxBytes int64
}

// Quotas are the quotas of the file; a nil file has none.
func (f *File) Quotas() quota.Limits {
	if f == nil {
		return quota.Limits{}
	}
	l := quota.Limits{Default: f.DefaultMaxBytes}
	for _, t := range f.Tenants {
		if t.MaxBytes > 0 {
			if l.Tenants == nil {
				l.Tenants = make(map[tenants.ID]int64)
			}
			l.Tenants[t.ID] = t.MaxBytes
		}
	}
	return l
}

// Names are the tenants of the file; a nil file has none.
func (f *File) Names() []Tenant {
	if f == nil {
		return nil
	}
	return f.Tenants
}

// entry is a tenant as the file has it.
type entry struct {
	Name          string `yaml:"name"`
	CacheSaltFile string `yaml:"cache_salt_file"`
	Digest        string `yaml:"digest"`
	MaxBytes      *size  `yaml:"max_bytes"`
}

type document struct {
	DefaultMaxBytes *size   `yaml:"default_max_bytes"`
	Tenants         []entry `yaml:"tenants"`
}

// size is a size whose errors say in which line it is.
type size config.Bytes

// UnmarshalYAML reads a size.
func (s *size) UnmarshalYAML(n *yaml.Node) error {
	if err := n.Decode((*config.Bytes)(s)); err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	return nil
}

const (
	// maxFileBytes and maxTenants bound what is read: a name and a digest for each of a large company's teams.
	maxFileBytes = 4 << 20
	maxTenants   = 10000
	maxNameBytes = 64
	// leastMaxBytes is the least quota: a few records of most models, and a mistyped unit is found.
	leastMaxBytes = 1 << 20
)

// errEmpty is the error of a file that is read again and has nothing: it is more likely being written than meant to have no tenants.
var errEmpty = errors.New("the file is empty; write 'tenants: []' for no tenants")

// errMore is the error of a file of several YAML documents. Only the first would count.
var errMore = errors.New("the file has a second YAML document, or an error after the first: remove the line '---'")

// Load reads a file, and the salts that it names. Names of salt files are relative to its directory. Errors say in which line, and show no salt.
func Load(path string) (*File, error) { return load(path, true) }

func load(path string, mayBeEmpty bool) (*File, error) {
	text, err := read(path, maxFileBytes, onlyRegular)
	if err != nil {
		return nil, fmt.Errorf("tenants: %w", err)
	}
	if !mayBeEmpty && len(bytes.TrimSpace(text)) == 0 {
		return nil, fmt.Errorf("tenants: %s: %w", path, errEmpty)
	}
	var d document
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&d); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("tenants: %s: %w", path, short(err))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("tenants: %s: %w", path, errMore)
	}
	f, err := d.file(filepath.Dir(path))
	if at := new(entryError); errors.As(err, &at) {
		if line := lineOf(text, at); line > 0 {
			err = fmt.Errorf("line %d: %w", line, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("tenants: %s: %w", path, err)
	}
	return f, nil
}

func (d *document) file(dir string) (*File, error) {
	if len(d.Tenants) > maxTenants {
		return nil, fmt.Errorf("%d tenants: at most %d", len(d.Tenants), maxTenants)
	}
	f := &File{}
	var err error
	if f.DefaultMaxBytes, err = quotaOf("default_max_bytes", d.DefaultMaxBytes); err != nil {
		return nil, &entryError{-1, err}
	}
	names, ids := make(map[string]bool), make(map[tenants.ID]string)
	for i := range d.Tenants {
		t, err := d.Tenants[i].tenant(dir)
		if err != nil {
			return nil, &entryError{i, fmt.Errorf("%q: %w", d.Tenants[i].Name, err)}
		}
		if names[t.Name] {
			return nil, &entryError{i, fmt.Errorf("the name %q is there twice", t.Name)}
		}
		if other, ok := ids[t.ID]; ok {
			return nil, &entryError{i, fmt.Errorf("%q and %q have one cache_salt", other, t.Name)}
		}
		names[t.Name], ids[t.ID] = true, t.Name
		f.Tenants = append(f.Tenants, t)
	}
	return f, nil
}

func (e *entry) tenant(dir string) (t Tenant, err error) {
	t = Tenant{Name: e.Name}
	if e.Name == "" || len(e.Name) > maxNameBytes || strings.ContainsFunc(e.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return t, fmt.Errorf("name: 1 to %d bytes that can be printed", maxNameBytes)
	}
	if t.MaxBytes, err = quotaOf("max_bytes", e.MaxBytes); err != nil {
		return t, err
	}
	switch {
	case (e.CacheSaltFile == "") == (e.Digest == ""):
		return t, errors.New("give one of cache_salt_file and digest")
	case e.Digest != "":
		t.ID, err = ParseID(e.Digest)
		return t, err
	}
	path := e.CacheSaltFile
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	t.ID, err = readSalt(path, onlyRegular)
	return t, err
}

// quotaOf is a quota, 0 if it is not there: a quota of nothing would be a way to say that there is none.
func quotaOf(key string, b *size) (int64, error) {
	switch {
	case b == nil:
		return 0, nil
	case *b < leastMaxBytes:
		return 0, fmt.Errorf("%s is %s: at least %s", key, config.Bytes(*b), config.Bytes(leastMaxBytes))
	}
	return int64(*b), nil
}

// ReadSalt reads a file that has a cache_salt and nothing else but a line break at its end, and returns whose it is.
func ReadSalt(path string) (id tenants.ID, err error) { return readSalt(path, anyKind) }

func readSalt(path string, kind fileKind) (id tenants.ID, err error) {
	text, err := read(path, connector.MaxScopeBytes+2, kind)
	if err != nil {
		return id, fmt.Errorf("cache_salt: %w", err)
	}
	salt := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if salt == "" || len(salt) > connector.MaxScopeBytes {
		return id, fmt.Errorf("cache_salt: %s has %d bytes, want 1 to %d", path, len(salt), connector.MaxScopeBytes)
	}
	return tenants.Of(connector.Scope{Salt: salt}.Digest()), nil
}

// ParseID parses the digest of a tenant.
func ParseID(text string) (id tenants.ID, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("a tenant's digest has %d hexadecimal digits", 2*len(id))
	}
	return tenants.ID(b), nil
}

// fileKind says what may be read: where a daemon reads it, no pipe, which it would wait for.
type fileKind bool

const (
	anyKind     fileKind = false
	onlyRegular fileKind = true
)

// read reads a file of a bounded size.
func read(path string, maxBytes int64, kind fileKind) (text []byte, err error) {
	flags := os.O_RDONLY
	if kind == onlyRegular {
		flags |= syscall.O_NONBLOCK
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if kind == onlyRegular {
		if info, err := f.Stat(); err != nil {
			return nil, err
		} else if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is not a regular file", path)
		}
	}
	text, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && int64(len(text)) > maxBytes {
		err = fmt.Errorf("%s has more than %d bytes", path, maxBytes)
	}
	return text, err
}
