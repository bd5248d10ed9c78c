package config

import (
	"slices"
	"testing"
)

func TestModesAreOctal(t *testing.T) {
	for text, want := range map[string]Mode{"": 0, "0660": 0o660, "660": 0o660, "0o666": 0o666, " 0600 ": 0o600} {
		var m Mode
		if err := m.UnmarshalText([]byte(text)); err != nil || m != want {
			t.Errorf("%q: %v %v", text, m, err)
		}
		var again Mode
		if err := again.UnmarshalText([]byte(m.String())); err != nil || again != m {
			t.Errorf("%q is shown as %q: %v %v", text, m, again, err)
		}
	}
	for _, text := range []string{"0", "9", "rw-rw----", "-1", "1777", "0x1b0", "0660 0600", "77777777777777777777"} {
		var m Mode
		if err := m.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, m)
		}
	}
}

func TestIDsAreListed(t *testing.T) {
	for text, want := range map[string]IDs{"": nil, "0": {0}, "1000, 65534": {1000, 65534}, "4294967294": {1<<32 - 2}} {
		var n IDs
		if err := n.UnmarshalText([]byte(text)); err != nil || !slices.Equal(n, want) {
			t.Errorf("%q: %v %v", text, n, err)
		}
		var again IDs
		if err := again.UnmarshalText([]byte(n.String())); err != nil || !slices.Equal(again, n) {
			t.Errorf("%q is shown as %q: %v %v", text, n, again, err)
		}
	}
	for _, text := range []string{"root", "-1", "1,", ",1", "1;2", "4294967295", "4294967296", "1 2"} {
		var n IDs
		if err := n.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, n)
		}
	}
}
