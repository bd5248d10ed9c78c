package config

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"unicode"
)

// Access are the settings that say who may connect to the daemon's socket, a part of [Serve].
type Access struct {
	SocketMode  Mode   `name:"socket-mode" env:"KVCONN_SOCKET_MODE" placeholder:"MODE" help:"Permissions of the socket, such as 0660. Default: 0600; 0660 with --socket-group; 0666 with --allow-uids or --allow-gids."`
	SocketGroup string `name:"socket-group" env:"KVCONN_SOCKET_GROUP" placeholder:"GROUP" help:"Group, name or number, that the socket is given to and whose members may connect. Default: none."`
	AllowUIDs   IDs    `name:"allow-uids" env:"KVCONN_ALLOW_UIDS" placeholder:"N,..." help:"Numbers of users that may connect besides root and the daemon's own. Default: none."`
	AllowGIDs   IDs    `name:"allow-gids" env:"KVCONN_ALLOW_GIDS" placeholder:"N,..." help:"Numbers of groups whose members may connect. Default: none."`
}

// Mode are a file's permissions. Its text form is octal, as of chmod; 0 is not set.
type Mode fs.FileMode

// UnmarshalText parses permissions such as 0660; an empty text is not set.
func (m *Mode) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	if s == "" {
		*m = 0
		return nil
	}
	v, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if err != nil || v == 0 || fs.FileMode(v)&^fs.ModePerm != 0 {
		return fmt.Errorf("%q is no mode: want octal permissions such as 0660", text)
	}
	*m = Mode(v)
	return nil
}

// String is the text form, empty if the mode is not set.
func (m Mode) String() string {
	if m == 0 {
		return ""
	}
	return fmt.Sprintf("%#04o", uint32(m))
}

// IDs are numbers of users or groups. Their text form has commas between them.
type IDs []uint32

// UnmarshalText parses numbers such as 1000,65534; an empty text is none.
func (n *IDs) UnmarshalText(text []byte) error {
	*n = nil
	s := strings.TrimSpace(string(text))
	if s == "" {
		return nil
	}
	for part := range strings.SplitSeq(s, ",") {
		// The largest number means no user.
		v, err := strconv.ParseUint(strings.TrimSpace(part), 10, 32)
		if err != nil || v == 1<<32-1 {
			return fmt.Errorf("%q are no numbers of users or groups: want such as 1000,65534", text)
		}
		*n = append(*n, uint32(v))
	}
	return nil
}

// String is the text form.
func (n IDs) String() string {
	parts := make([]string, len(n))
	for i, id := range n {
		parts[i] = strconv.FormatUint(uint64(id), 10)
	}
	return strings.Join(parts, ",")
}

// checkToken wants a token that a header can carry. A file often ends with a line break, which no client could send.
func checkToken(key, token string) error {
	if token != strings.TrimSpace(token) || strings.ContainsFunc(token, unicode.IsControl) {
		return fmt.Errorf("%s has a line break, another control character, or white space at an end: no client can send it", key)
	}
	return nil
}
