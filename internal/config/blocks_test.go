package config

import "testing"

func TestBlocksAreANumberOrASize(t *testing.T) {
	for text, want := range map[string]int{"0": 0, "30000": 30000, "-5": -5, "2TB": 31250, "1GiB": 16, "64KB": 1, "0B": 0, "1B": 1, "4000TiB": 1<<31 - 1} {
		var b, again Blocks
		if err := b.UnmarshalText([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		blockBytes := 64e6
		if text == "4000TiB" {
			blockBytes = 1
		}
		if got := b.Of(blockBytes); got != want {
			t.Errorf("%q is %d blocks, want %d", text, got, want)
		}
		if err := again.UnmarshalText([]byte(b.String())); err != nil || again != b {
			t.Errorf("%q is written as %q and read as %+v, %v", text, b, again, err)
		}
	}
	for _, text := range []string{"", "x", "5%", "-1GB"} {
		var b Blocks
		if err := b.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %+v", text, b)
		}
	}
}
