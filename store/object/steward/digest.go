package steward

import (
	"bytes"
	"maps"
	"slices"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/object/format"
)

// digest is what several lists say together.
type digest struct {
	objects []format.Object
	at      map[format.ObjectID]int // in objects
	used    map[format.ObjectID]format.Seconds
	removed map[format.ObjectID]format.Removal
	deleted map[format.ObjectID]bool
	spaces  map[connector.NamespaceDigest]bool // of objects
}

func newDigest() *digest {
	return &digest{
		at: make(map[format.ObjectID]int), used: make(map[format.ObjectID]format.Seconds),
		removed: make(map[format.ObjectID]format.Removal), deleted: make(map[format.ObjectID]bool),
		spaces: make(map[connector.NamespaceDigest]bool),
	}
}

// takes reports whether one list has room for the namespaces of another too. If it does the other is to be added, else
// nothing more.
func (d *digest) takes(l *format.List) bool {
	for i := range l.Objects {
		d.spaces[l.Objects[i].Namespace] = true
	}
	return len(d.spaces) <= format.MaxNamespaces
}

// add adds what a list says. It does not matter in which sequence lists come, nor how often.
func (d *digest) add(l *format.List) {
	for _, o := range l.Objects {
		if i, there := d.at[o.ID]; there {
			d.objects[i].Used = max(d.objects[i].Used, o.Used)
			continue
		}
		d.at[o.ID] = len(d.objects)
		d.objects = append(d.objects, o)
	}
	for _, u := range l.Used {
		d.used[u.Object] = max(d.used[u.Object], u.When)
	}
	for _, r := range l.Removed {
		if first, there := d.removed[r.Object]; !there || r.When < first.When {
			d.removed[r.Object] = r
		}
	}
	for _, id := range l.Deleted {
		d.deleted[id] = true
	}
}

// settle drops what is superseded: objects that are deleted with all that was said of them. whole is
// set if nothing else in the bucket has older entries: then nothing is said of objects that are not here.
func (d *digest) settle(whole bool) {
	for id, when := range d.used {
		i, here := d.at[id]
		_, gone := d.removed[id]
		if here {
			d.objects[i].Used = max(d.objects[i].Used, when)
		}
		if here || gone || whole || d.deleted[id] {
			delete(d.used, id)
		}
	}
	for id := range d.removed {
		if _, here := d.at[id]; d.deleted[id] || whole && !here {
			delete(d.removed, id)
		}
	}
	d.objects = slices.DeleteFunc(d.objects, func(o format.Object) bool { return d.deleted[o.ID] })
	for id := range d.deleted {
		if _, here := d.at[id]; here || whole {
			delete(d.deleted, id)
		}
	}
}

// fill puts it into a list.
func (d *digest) fill(l *format.List) {
	l.Objects = d.objects
	for _, id := range sorted(d.used) {
		l.Used = append(l.Used, format.Use{Object: id, When: d.used[id]})
	}
	for _, id := range sorted(d.removed) {
		l.Removed = append(l.Removed, d.removed[id])
	}
	l.Deleted = sorted(d.deleted)
}

func (d *digest) empty() bool {
	return len(d.objects)+len(d.used)+len(d.removed)+len(d.deleted) == 0
}

// records is how many records there are.
func (d *digest) records() (n uint64) {
	for i := range d.objects {
		n += uint64(len(d.objects[i].Records))
	}
	return n
}

func sorted[V any](m map[format.ObjectID]V) []format.ObjectID {
	return slices.SortedFunc(maps.Keys(m), func(a, b format.ObjectID) int { return bytes.Compare(a[:], b[:]) })
}
