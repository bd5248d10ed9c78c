package enginebench

import (
	"math/rand/v2"
	"strings"
)

// kind separates prompts for different purposes.
type kind uint64

const (
	kindProbe kind = iota
	kindPrompt
	kindFill
	kindWarm
)

// vocabulary are words that most tokenizers have as one token each, with the space before them.
const vocabulary = `time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city name team minute idea body information back parent face others level office door
health person art war history party result change morning reason research girl guy moment air teacher force education`

// prompt is a text of that many words. Its first words already differ from those of every other prompt: nothing of it is
// cached before it is asked.
func prompt(seed, stream uint64, k kind, n, words int) string {
	list := strings.Fields(vocabulary)
	r := rand.New(rand.NewChaCha8(key(seed, stream, k, n)))
	var b strings.Builder
	b.Grow(8 * words)
	for i := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(list[r.IntN(len(list))])
	}
	return b.String()
}

func key(seed, stream uint64, k kind, n int) (key [32]byte) {
	for at, v := range [4]uint64{seed, stream, uint64(k), uint64(n)} {
		for i := range 8 {
			key[8*at+i] = byte(v >> (8 * i))
		}
	}
	return key
}
