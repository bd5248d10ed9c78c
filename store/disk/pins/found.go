package pins

import (
	"github.com/kvconn/kvconn/store/disk/chains"
	"github.com/kvconn/kvconn/store/disk/index"
)

// late says which records that are found late, after a journal was lost, pins keep. It is made when the first is found, and again after a change.
type late struct {
	covers map[uint16]func(chains.Record) bool
	// unknown are namespaces of pins that had no number: they may get one with a header.
	unknown []Pin
}

// Found has those records kept that the rebuild has just put into the table and that a pin has: before the next eviction, so it is to be called
// by the one who evicts. Without pins it costs next to nothing.
func (p *Pins) Found(found []index.Adopted) {
	p.mu.Lock() // over all of it: a pin that ends must not leave a record kept
	defer p.mu.Unlock()
	if len(p.list) == 0 {
		return
	}
	l := p.lateCovers()
	var refs []index.Ref
	var seqs []uint64
	for i := range found {
		f := &found[i]
		if covered := l.covers[f.ID.Namespace]; f.Added && covered != nil && covered(chains.Record{ID: f.ID, Ref: f.Ref, Seq: f.Seq, Bytes: f.Bytes}) {
			refs, seqs = append(refs, f.Ref), append(seqs, f.Seq)
		}
	}
	p.o.Table.Keep(refs, seqs, true, p.o.MaxBytes)
}

// lateCovers returns what the list in force covers. p.mu is held.
func (p *Pins) lateCovers() *late {
	if p.late == nil {
		p.late = &late{covers: make(map[uint16]func(chains.Record) bool), unknown: p.list}
	}
	var unknown []Pin
	for _, pin := range p.late.unknown {
		number, known := p.o.Number(pin.Namespace)
		if !known {
			unknown = append(unknown, pin)
			continue
		}
		if p.late.covers[number] == nil {
			p.late.covers[number] = covers(p.list, pin.Namespace)
		}
	}
	p.late.unknown = unknown
	return p.late
}
