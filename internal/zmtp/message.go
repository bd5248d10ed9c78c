package zmtp

// Message is a received message of one or more frames. The next one received into it reuses its memory. The zero
// value is ready.
type Message struct {
	buf  []byte
	ends []int
}

// Len is the number of frames.
func (m *Message) Len() int { return len(m.ends) }

// Frame is frame i, valid until the message is received into again.
func (m *Message) Frame(i int) []byte {
	from := 0
	if i > 0 {
		from = m.ends[i-1]
	}
	return m.buf[from:m.ends[i]:m.ends[i]]
}

// Cap is the memory that the message holds, in bytes.
func (m *Message) Cap() int { return cap(m.buf) }

func (m *Message) reset() { m.buf, m.ends = m.buf[:0], m.ends[:0] }
