package feed

import "github.com/kvconn/kvconn/router/blockkey"

// pages are what an SGLang rank holds, by the engine's names. The index has them by names made of their keys, since pages
// of one key may have several names: with EAGLE they cover the token after the page, in the format dynamo a request's
// extra_key. An entry takes 60 to 100 bytes.
type pages struct {
	held map[uint64]page
	most int
	// dropped says that there were too many, and children of a page that is held may have no place.
	dropped bool
}

// page is a page of a name.
type page struct {
	// id is the index's name, tail what the hash has beyond the 128 bits in the index: the next page's hash covers all of it.
	id     uint64
	tail   blockkey.Tail
	copies uint32
}

// maxPages bounds the pages of one rank: its GPU's, which are fewer.
const maxPages = 1 << 22

func newPages(most int) pages { return pages{held: make(map[uint64]page), most: most} }

// add notes one more copy of a page. gone, if it has copies, is one that had the name before, or one that had to make room:
// nothing will remove it any more.
func (p *pages) add(name, id uint64, tail blockkey.Tail) (gone page) {
	had, ok := p.held[name]
	switch {
	case ok && had.id == id:
		p.held[name] = page{id: id, tail: tail, copies: had.copies + 1}
		return page{}
	case ok:
		gone = had
	case len(p.held) >= p.most:
		for other := range p.held { // any
			gone, p.dropped = p.held[other], true
			delete(p.held, other)
			break
		}
	}
	p.held[name] = page{id: id, tail: tail, copies: 1}
	return gone
}

// remove notes that one copy of each page is gone, appends the index's names of them to ids, and returns how many were
// unknown.
func (p *pages) remove(names []uint64, ids []uint64) (_ []uint64, unknown int) {
	for _, name := range names {
		had, ok := p.held[name]
		if !ok {
			unknown++
			continue
		}
		ids = append(ids, had.id)
		if had.copies--; had.copies == 0 {
			delete(p.held, name)
		} else {
			p.held[name] = had
		}
	}
	return ids, unknown
}

func (p *pages) clear() {
	if len(p.held) > 0 {
		p.held = make(map[uint64]page)
	}
	p.dropped = false
}
