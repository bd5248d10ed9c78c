package seal

import (
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// line is the line of a key file.
func line(k Key) string { return linePrefix + base64.StdEncoding.EncodeToString(k[:]) + "\n" }

// keyFile writes a key file.
func keyFile(t *testing.T, content string, mode fs.FileMode) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestLoad(t *testing.T) {
	first, second := testKey(1), testKey(2)
	content := "# made for a test\n\n" + line(first) + "  " + strings.TrimSuffix(line(second), "\n") + "  \r\n"
	for _, mode := range []fs.FileMode{0o600, 0o400} {
		r, err := Load(keyFile(t, content, mode))
		if err != nil {
			t.Fatal(err)
		}
		if ids := r.KeyIDs(); len(ids) != 2 || ids[0] != first.ID() || ids[1] != second.ID() || r.KeyID() != first.ID() {
			t.Errorf("%v", r)
		}
	}
	if r, err := Load(keyFile(t, strings.TrimSuffix(line(first), "\n"), 0o600)); err != nil || r.KeyID() != first.ID() {
		t.Errorf("without the last end of line: %v, %v", r, err)
	}
}

// rootsFile describes a file of a user.
type rootsFile struct {
	fs.FileInfo
	owner uint32
	mode  fs.FileMode
}

func (f rootsFile) Mode() fs.FileMode { return f.mode }
func (f rootsFile) Sys() any          { return &syscall.Stat_t{Uid: f.owner} }
func (f rootsFile) Size() int64       { return 1 }

// Kubernetes mounts a Secret as files of root and of the pod's group, for which the daemon's user needs no root.
func TestAFileOfRootMayBeItsGroups(t *testing.T) {
	for _, c := range []struct {
		owner uint32
		user  int
		mode  fs.FileMode
		good  bool
	}{
		{0, 1000, 0o440, true}, {0, 1000, 0o640, true}, {0, 1000, 0o400, true},
		{0, 0, 0o440, false},                                                      // root needs no group
		{1000, 1000, 0o440, false},                                                // its own
		{1001, 1000, 0o440, false},                                                // another user's
		{0, 1000, 0o444, false}, {0, 1000, 0o460, false}, {0, 1000, 0o450, false}, // more than to be read
		{1000, 1000, 0o600, true}, {1000, 1000, 0o400, true}, {0, 1000, fs.ModeDevice, false}, // as ever
	} {
		if err := checkFile("keys", rootsFile{owner: c.owner, mode: c.mode}, c.user); (err == nil) != c.good {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// goldenKeyID is the beginning of the SHA-256 of "kvconn/key-id/1" and the bytes 0 to 31.
const goldenKeyID = "230f3db5"

// What is sealed with a key is opened by another process with the same file: ids and keys are what
// the file says, today and later.
func TestKeyIDsStay(t *testing.T) {
	k, err := parseLine([]byte("kvconn-key-1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="))
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range k {
		if b != byte(i) {
			t.Fatalf("byte %d is wrong", i)
		}
	}
	if id := KeyName(k.ID()); id != goldenKeyID {
		t.Errorf("id %s, want %s", id, goldenKeyID)
	}
}

func TestCreate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	made, err := Create(file)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if r, err := Load(file); err != nil || r.KeyID() != made.KeyID() {
		t.Errorf("%v, %v, want %v", r, err, made)
	}
	if _, err := Create(file); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that is there: %v", err)
	}
	other, err := Create(file + "2")
	if err != nil || other.KeyID() == made.KeyID() {
		t.Errorf("%v, %v", other, err)
	}
}

func TestModesThatLetOthersIn(t *testing.T) {
	for _, mode := range []fs.FileMode{0o644, 0o640, 0o660, 0o604, 0o602, 0o610, 0o700, 0o444, 0o777} {
		file := keyFile(t, line(testKey(1)), mode)
		r, err := Load(file)
		if err == nil || r != nil || !strings.Contains(err.Error(), "chmod 600 "+file) {
			t.Errorf("%04o: %v", mode, err)
		}
	}
}

func TestFilesThatAreNone(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Error(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(pipe); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Error(err)
	}
	missing := filepath.Join(dir, "missing")
	if _, err := Load(missing); err == nil || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "umask 077") {
		t.Errorf("no word on how to make one: %v", err)
	}
	if _, err := Load(keyFile(t, strings.Repeat("#", maxFileBytes+1), 0o600)); err == nil {
		t.Error("a file of any size was read")
	}
}

// Secrets that tests put into bad files: no error may show a piece of them.
const (
	secretText = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlYw=="
	shownBytes = 6
)

func TestContentThatIsRefused(t *testing.T) {
	for name, content := range map[string]string{
		"empty":              "",
		"comments alone":     "# nothing\n",
		"no prefix":          secretText + "\n",
		"another kind":       "kvconn-key-2:" + secretText + "\n",
		"too short":          linePrefix + secretText[:40] + "\n",
		"too long":           linePrefix + secretText + "AAAA\n",
		"31 bytes":           linePrefix + "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlYw==" + "\n",
		"33 bytes":           linePrefix + "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3Jl" + "\n",
		"not base64":         linePrefix + strings.Replace(secretText, "V", "!", 1) + "\n",
		"space within":       linePrefix + strings.Replace(secretText, "V", " ", 1) + "\n",
		"return within":      linePrefix + strings.Replace(secretText, "V", "\r", 1) + "\n",
		"text after":         strings.TrimSuffix(line(testKey(1)), "\n") + " " + secretText + "\n",
		"second line bad":    line(testKey(1)) + secretText + "\n",
		"the same twice":     line(testKey(1)) + line(testKey(1)),
		"not random":         line(filled('s')),
		"bits after the end": linePrefix + "c2VjcmV0KzFzZWNyZXQrMXNlY3JldCsxc2VjcmV0KzF=\n",
		"a mark of UTF-8":    "\ufeff" + line(testKey(1)),
		"too many":           manyKeys(maxKeys + 1),
	} {
		r, err := Load(keyFile(t, content, 0o600))
		if err == nil || r != nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for at := range len(secretText) - shownBytes {
			if piece := secretText[at : at+shownBytes]; strings.Contains(err.Error(), piece) {
				t.Errorf("%s: %v shows %q", name, err, piece)
			}
		}
		if strings.Contains(err.Error(), "c2Vj") || strings.Contains(err.Error(), "AQIFChEa") {
			t.Errorf("%s: %v shows a key", name, err)
		}
	}
	if r, err := Load(keyFile(t, manyKeys(maxKeys), 0o600)); err != nil || len(r.KeyIDs()) != maxKeys {
		t.Error(err)
	}
}

// manyKeys is a file of n keys.
func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(line(testKey(byte(i))))
	}
	return b.String()
}

func TestErrorsNameTheLine(t *testing.T) {
	_, err := Load(keyFile(t, "# one\n\n"+line(testKey(1))+"wrong\n", 0o600))
	if err == nil || !strings.Contains(err.Error(), "line 4:") {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(line(testKey(1)) + "# comment\n\r\n" + line(testKey(2))))
	f.Add([]byte(line(Key{})))
	f.Add([]byte("kvconn-key-1:"))
	f.Add([]byte("kvconn-key-2:" + secretText))
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, err := parse(b)
		if err != nil {
			if keys != nil {
				t.Errorf("keys and %v", err)
			}
			return
		}
		if len(keys) == 0 || len(keys) > maxKeys {
			t.Fatalf("%d keys", len(keys))
		}
		var again strings.Builder
		for _, k := range keys {
			again.WriteString(line(k))
		}
		same, err := parse([]byte(again.String()))
		if err != nil || len(same) != len(keys) {
			t.Fatalf("%d keys became %d: %v", len(keys), len(same), err)
		}
		for i := range keys {
			if same[i] != keys[i] {
				t.Fatalf("key %d became another", i)
			}
		}
	})
}
