package campaign

// Reduce looks for a short part of a list for which fails still holds, by leaving out smaller and
// smaller parts (delta debugging). fails(all) must hold; calls bounds the number of calls of
// fails.
func Reduce[T any](all []T, calls int, fails func([]T) bool) []T {
	parts := 2
	for len(all) > 0 && calls > 0 {
		parts = min(parts, len(all))
		smaller := false
		for k := range parts {
			from, to := len(all)*k/parts, len(all)*(k+1)/parts
			rest := append(append([]T(nil), all[:from]...), all[to:]...)
			if calls--; fails(rest) {
				all, smaller, parts = rest, true, max(2, parts-1)
				break
			}
			if calls == 0 {
				return all
			}
		}
		switch {
		case smaller:
		case parts >= len(all):
			return all
		default:
			parts *= 2
		}
	}
	return all
}

// line is a clause or a step of a case, the other nil.
type line struct {
	clause, step int
}

// Reduce returns the smallest case it finds, among those made of c's clauses and steps, for
// which fails still holds.
func (c *Case) Reduce(calls int, fails func(*Case) bool) Case {
	var all []line
	for i := range c.Script {
		all = append(all, line{i, -1})
	}
	for i := range c.Steps {
		all = append(all, line{-1, i})
	}
	best := Reduce(all, calls, func(part []line) bool {
		smaller := c.of(part)
		return fails(&smaller)
	})
	return c.of(best)
}

// of is the case with some of its lines.
func (c *Case) of(lines []line) Case {
	out := Case{Cap: c.Cap, Disk: c.Disk}
	for _, l := range lines {
		if l.clause >= 0 {
			out.Script = append(out.Script, c.Script[l.clause])
		} else {
			out.Steps = append(out.Steps, c.Steps[l.step])
		}
	}
	return out
}
