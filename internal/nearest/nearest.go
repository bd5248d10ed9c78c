// Package nearest finds what somebody may have meant by a name that does not exist.
package nearest

// A name is near if no more than every third of its letters is wrong, and of a short name no more than two.
const (
	wrongPart = 3
	wrongMost = 2
)

// Of returns the candidate with the smallest edit distance to name, "" if none is near.
func Of(name string, candidates []string) string {
	best, bestDistance := "", max(wrongMost, len(name)/wrongPart)+1
	for _, c := range candidates {
		if d := distance(name, c); d < bestDistance && d < max(len(name), len(c)) {
			best, bestDistance = c, d
		}
	}
	return best
}

// Hint is the nearest candidate as the end of an error's text, quoted; "" if none is near.
func Hint(name string, candidates []string) string {
	if near := Of(name, candidates); near != "" {
		return `, did you mean "` + near + `"?`
	}
	return ""
}

// distance is the Levenshtein distance of a and b in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
