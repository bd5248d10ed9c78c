package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

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
