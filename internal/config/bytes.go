package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size. Its text form is a number with an optional unit: B, KB, MB, GB, TB
// (powers of 1,000) or KiB, MiB, GiB, TiB (powers of 1,024), in any case, with or without the B, as
// Kubernetes writes them.
type Bytes int64

// unit is a suffix and what it multiplies by; longer suffixes come first.
type unit struct {
	suffix string
	factor int64
}

func units() []unit {
	return []unit{
		{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
		{"ki", 1 << 10}, {"mi", 1 << 20}, {"gi", 1 << 30}, {"ti", 1 << 40},
		{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}, {"b", 1},
		{"k", 1e3}, {"m", 1e6}, {"g", 1e9}, {"t", 1e12},
	}
}

// UnmarshalText parses a size.
func (b *Bytes) UnmarshalText(text []byte) error {
	s := strings.ToLower(strings.TrimSpace(string(text)))
	factor := int64(1)
	for _, u := range units() {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			s, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || v < 0 || math.IsNaN(v) || v*float64(factor) > math.MaxInt64/2 {
		return fmt.Errorf("%q is no size: want a number with a unit such as 500GB or 64MiB", text)
	}
	*b = Bytes(v * float64(factor))
	return nil
}

// MarshalText returns the size in the unit that needs the smallest whole number.
func (b Bytes) MarshalText() ([]byte, error) {
	best := unit{"B", 1}
	for _, u := range []unit{
		{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3},
	} {
		if b != 0 && int64(b)%u.factor == 0 && u.factor > best.factor {
			best = u
		}
	}
	return fmt.Appendf(nil, "%d%s", int64(b)/best.factor, best.suffix), nil
}

// WholeMiB is the size without the part that is less than 1 MiB, for people: that of a machine's memory is any number.
func (b Bytes) WholeMiB() Bytes { return b >> 20 << 20 }

// String is the text form.
func (b Bytes) String() string {
	t, _ := b.MarshalText() // never fails
	return string(t)
}

// Space is a part of a file system: a size, or a percentage of it. The zero value is not set.
type Space struct {
	// Set distinguishes a setting of nothing from no setting.
	Set bool
	// Percent is 0 if Bytes is the size.
	Percent float64
	Bytes   Bytes
}

// UnmarshalText parses a size or a percentage such as 5%; an empty text is not set.
func (s *Space) UnmarshalText(text []byte) error {
	trimmed := strings.TrimSpace(string(text))
	*s = Space{Set: trimmed != ""}
	number, percent := strings.CutSuffix(trimmed, "%")
	switch {
	case !s.Set:
		return nil
	case !percent:
		return s.Bytes.UnmarshalText(text)
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || math.IsNaN(v) || v < 0 || v >= 100 {
		return fmt.Errorf("%q is no part of a disk: want a size such as 20GB, or 0%% to less than 100%%", text)
	}
	s.Percent = v
	return nil
}

// String is the text form.
func (s Space) String() string {
	switch {
	case !s.Set:
		return ""
	case s.Percent > 0:
		return strconv.FormatFloat(s.Percent, 'g', -1, 64) + "%"
	}
	return s.Bytes.String()
}

// Cap is a [Space] that a store may take. The zero value lets the store choose.
type Cap struct{ Space }

// UnmarshalText parses a size or a percentage; an empty text, 0 and 0% are not set.
func (c *Cap) UnmarshalText(text []byte) error {
	if err := c.Space.UnmarshalText(text); err != nil {
		return err
	}
	if c.Bytes == 0 && c.Percent == 0 {
		c.Set = false
	}
	return nil
}

// String is the text form, or what the store chooses by itself.
func (c Cap) String() string {
	if !c.Set {
		return "80% of what is free or its own"
	}
	return c.Space.String()
}
