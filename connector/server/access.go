package server

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrGroup means that the socket's group is none that the daemon's user may give it.
var ErrGroup = errors.New("give it to group")

// Access says who may connect besides root and the daemon's own user. The zero value is nobody.
type Access struct {
	// Mode is the socket's. Default: 0600; 0660 with a Group; 0666 with UIDs or GIDs, where the daemon's check of the peer
	// decides.
	Mode fs.FileMode
	// Group, a name or a number, gets the socket, and its members may connect.
	Group string
	// UIDs are users that may connect, GIDs groups whose members may, by any of a process's groups.
	UIDs, GIDs []uint32
}

// modes of the socket where none is set.
const (
	modeOwner fs.FileMode = 0o600
	modeGroup fs.FileMode = 0o660
	modeAll   fs.FileMode = 0o666
)

// access is an [Access] whose group is known by its number.
type access struct {
	mode       fs.FileMode
	uids, gids []uint32
	// group is the socket's, -1 to leave it as it is.
	group int
}

// Validate reports a mode that no socket can have, or a group that this system does not know.
func (a *Access) Validate() error {
	_, err := a.resolve()
	return err
}

func (a *Access) resolve() (access, error) {
	r := access{mode: a.Mode, uids: a.UIDs, gids: a.GIDs, group: -1}
	if a.Mode&^fs.ModePerm != 0 {
		return r, fmt.Errorf("socket mode %#o is none: want permissions such as 0660", uint32(a.Mode))
	}
	byDefault := modeOwner
	if len(a.UIDs) > 0 || len(a.GIDs) > 0 {
		byDefault = modeAll
	}
	if a.Group != "" {
		gid, err := findGroup(a.Group)
		if err != nil {
			return r, err
		}
		r.group, r.gids = int(gid), append(slices.Clone(a.GIDs), gid)
		if byDefault == modeOwner {
			byDefault = modeGroup
		}
	}
	r.mode = cmp.Or(r.mode, byDefault)
	return r, nil
}

// apply gives the socket at path its group and mode. Others may be able to put a link or a file in its place: these are
// left alone.
func (a *access) apply(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return errors.New("something else has taken its place")
	}
	if a.group >= 0 {
		if err := unix.Fchownat(fd, "", -1, a.group, unix.AT_EMPTY_PATH); err != nil {
			return fmt.Errorf("%w %d, which the daemon's user has to be in: %w", ErrGroup, a.group, err)
		}
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), a.mode) // fchmod does not take such a descriptor
}

// findGroup returns the number of a group. A number needs no name: containers often have none.
func findGroup(group string) (uint32, error) {
	if n, err := strconv.ParseUint(group, 10, 32); err == nil {
		return uint32(n), nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("find the socket's group: %w", err)
	}
	n, err := strconv.ParseUint(g.Gid, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("the socket's group %q has no number: %w", group, err)
	}
	return uint32(n), nil
}

// allows reports whether a peer may connect that is neither root nor the daemon's user. An error says why its groups are
// not known.
func (a *access) allows(c *net.UnixConn, peer *unix.Ucred) (bool, error) {
	if slices.Contains(a.uids, peer.Uid) || slices.Contains(a.gids, peer.Gid) {
		return true, nil
	}
	if len(a.gids) == 0 {
		return false, nil
	}
	groups, err := peerGroups(c)
	return slices.ContainsFunc(groups, func(g uint32) bool { return slices.Contains(a.gids, g) }), err
}

// usualGroups is room for the groups of most processes, maxGroups for those of any (NGROUPS_MAX).
const (
	usualGroups = 64
	maxGroups   = 65536
)

// peerGroups returns the supplementary groups that the process at the other end had when it connected.
func peerGroups(c *net.UnixConn) ([]uint32, error) {
	groups, err := control(c, func(socket int) ([]uint32, error) {
		for _, room := range [...]int{usualGroups, maxGroups} {
			groups := make([]uint32, room)
			size := uint32(len(groups)) * uint32(unsafe.Sizeof(groups[0]))
			_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
			switch {
			case errno == 0:
				return groups[:size/uint32(unsafe.Sizeof(groups[0]))], nil
			case !errors.Is(errno, unix.ERANGE):
				return nil, errno
			}
		}
		return nil, unix.ERANGE
	})
	if err != nil {
		return nil, fmt.Errorf("the peer's groups: %w", err)
	}
	return groups, nil
}
