package server

import (
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/connector/wire"
)

// strangers is a group that neither root nor the tests are in.
const strangers = 54321

// asNobody runs a helper as another user, with more groups, and returns what it printed.
func asNobody(t *testing.T, helper, socket string, groups ...uint32) (string, error) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	if err := os.Chmod(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := self(t, helper, socket)
	// Where the test binary lies the other user may not look.
	exe, err := os.ReadFile(cmd.Path)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path = filepath.Join(filepath.Dir(socket), "test")
	if err := os.WriteFile(cmd.Path, exe, 0o755); err != nil {
		t.Fatal(err)
	}
	return outputAs(cmd, groups)
}

func outputAs(cmd *exec.Cmd, groups []uint32) (string, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody, Groups: groups}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestOtherUsersConnectWhereTheyAreAllowed(t *testing.T) {
	many := make([]uint32, 2*usualGroups)
	for i := range many {
		many[i] = uint32(1000 + i)
	}
	for name, c := range map[string]struct {
		access Access
		groups []uint32
		helper string
	}{
		"user":                {Access{UIDs: []uint32{1, nobody}}, nil, "AllowedUser"},
		"group":               {Access{GIDs: []uint32{nobody}}, nil, "AllowedUser"},
		"supplementary group": {Access{GIDs: []uint32{strangers}}, []uint32{7, strangers}, "AllowedUser"},
		"one of many groups":  {Access{GIDs: []uint32{strangers}}, append(many, strangers), "AllowedUser"},
		"group of the socket": {Access{Group: strconv.Itoa(strangers)}, []uint32{strangers}, "AllowedUser"},
		"others' user":        {Access{UIDs: []uint32{1}}, nil, "OtherUser"},
		"others' group":       {Access{GIDs: []uint32{strangers}}, []uint32{7}, "OtherUser"},
		"many, none of them":  {Access{GIDs: []uint32{strangers}}, many, "OtherUser"},
		"mode alone":          {Access{Mode: 0o666}, nil, "OtherUser"},
		"no access":           {Access{}, nil, "NoAccess"},
		"not in the group":    {Access{Group: strconv.Itoa(strangers)}, nil, "NoAccess"},
		"mode over a list":    {Access{Mode: 0o600, UIDs: []uint32{nobody}}, nil, "NoAccess"},
	} {
		t.Run(name, func(t *testing.T) {
			s, socket := start(t, Options{Access: c.access}, newEcho())
			if out, err := asNobody(t, c.helper, socket, c.groups...); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if n := s.Stats().Refused; (n == 1) != (c.helper == "OtherUser") {
				t.Errorf("%d connections refused", n)
			}
		})
	}
}

func TestHelperAllowedUser(t *testing.T) {
	_, conn := dial(t, helperSocket(t))
	if f := greet(t, conn, hello(t)); f.Kind != wire.KindReply {
		t.Errorf("answer %+v", f.Header)
	}
}

func TestHelperNoAccess(t *testing.T) {
	c, err := net.Dial("unix", helperSocket(t))
	if err == nil {
		_ = c.Close()
		t.Error("the socket let another user connect")
	}
}

func TestTheSocketsModeSuitsWhoMayConnect(t *testing.T) {
	for _, c := range []struct {
		access Access
		want   fs.FileMode
	}{
		{Access{}, 0o600},
		{Access{Group: strconv.Itoa(os.Getgid())}, 0o660},
		{Access{UIDs: []uint32{5}}, 0o666},
		{Access{GIDs: []uint32{5}, Group: strconv.Itoa(os.Getgid())}, 0o666},
		{Access{UIDs: []uint32{5}, Mode: 0o640}, 0o640},
	} {
		path := filepath.Join(socketDir(t), "s")
		l, err := Reserve(t.Context(), path, c.access)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != c.want {
			t.Errorf("%+v: mode %v, %v; want %v", c.access, info.Mode(), err, c.want)
		}
		_ = l.Close()
	}
}

func TestAccessThatCannotBeGivenIsAnError(t *testing.T) {
	for want, a := range map[string]Access{
		"no-such-group": {Group: "no-such-group"},
		"permissions":   {Mode: fs.ModeSetuid | 0o600},
	} {
		if err := a.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", a, err)
		}
		dir := socketDir(t)
		if _, err := Reserve(t.Context(), filepath.Join(dir, "s"), a); err == nil {
			t.Errorf("%+v: a socket is made", a)
		}
	}
	if err := (&Access{Group: "root"}).Validate(); err != nil {
		t.Error(err)
	}
}

// Whoever may write to the socket's directory can put a link in its place, to a file that only the daemon may change.
func TestModeAndGroupAreGivenToTheSocketAlone(t *testing.T) {
	dir := socketDir(t)
	link, file := filepath.Join(dir, "s"), filepath.Join(dir, "secret")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, file} {
		if err := (&access{mode: modeAll, group: os.Getgid()}).apply(path); err == nil {
			t.Errorf("%s is taken for the socket", path)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}
