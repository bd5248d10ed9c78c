package index

// coldHeap holds the coldest records seen, the warmest of them on top.
type coldHeap []Victim

func (h *coldHeap) offer(v Victim, want int) {
	s := *h
	switch {
	case len(s) < want:
		s = append(s, v)
		s.up(len(s) - 1)
		*h = s
	case want > 0 && v.order < s[0].order:
		s[0] = v
		s.down(0)
	}
}

func (h coldHeap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if h[p].order >= h[i].order {
			return
		}
		h[p], h[i] = h[i], h[p]
		i = p
	}
}

func (h coldHeap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1].order > h[c].order {
			c++
		}
		if h[c].order <= h[i].order {
			return
		}
		h[c], h[i] = h[i], h[c]
		i = c
	}
}
