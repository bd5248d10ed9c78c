package engine

// EncodeText returns the bytes of a text as tokens: the byte-level vocabulary of the
// built-in models.
func EncodeText(text string) []uint32 {
	tokens := make([]uint32, len(text))
	for i := range len(text) {
		tokens[i] = uint32(text[i])
	}
	return tokens
}

// DecodeText is the inverse of [EncodeText]. What a random model generates is hardly
// ever valid UTF-8.
func DecodeText(tokens []uint32) string {
	text := make([]byte, len(tokens))
	for i, t := range tokens {
		text[i] = byte(t)
	}
	return string(text)
}
