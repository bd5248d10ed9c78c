package steward

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/object/format"
)

// Nodes come, save, sleep, die at a random request and leave, two are stewards at once, objects are removed. In the
// end all nodes have the same catalog, and one that joins too; what nodes saved that did not die is in it.
func TestModel(t *testing.T) {
	random, rounds := seed.Random(t, 0), 2
	if os.Getenv("KVCONN_TEST_LONG") != "" {
		rounds = 60
	}
	for round := range rounds {
		conditions := []s3mem.Conditions{s3mem.Honoured, s3mem.Ignored}[round%2]
		number := random.Uint64()
		t.Run(fmt.Sprintf("%d, conditions %d", round, conditions), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{world: newWorld(t, s3mem.Options{Conditions: conditions}), number: number, conditional: conditions == s3mem.Honoured, unsure: make(map[format.ObjectID]bool)}
				defer m.end()
				m.play(120)
				m.check()
				if t.Failed() {
					t.Log(m.log.String())
				}
			})
		})
	}
}

type model struct {
	*world
	number      uint64
	conditional bool
	alive       []*node
	saved       map[*node][]format.ObjectID
	unsure      map[format.ObjectID]bool // of nodes that died
	removed     []format.ObjectID
	names       int
}

// below draws a number.
func (m *model) below(n int) int {
	m.number = m.number*6364136223846793005 + 1442695040888963407
	return int(m.number >> 33 % uint64(n))
}

func (m *model) play(steps int) {
	m.saved = make(map[*node][]format.ObjectID)
	m.join()
	for range steps {
		time.Sleep(time.Duration(m.below(20_000)) * time.Millisecond)
		if len(m.alive) == 0 {
			m.join()
		}
		n := m.alive[m.below(len(m.alive))]
		switch m.below(24) {
		case 0:
			m.join()
		case 1:
			n.transport.n.Store(0)
			n.transport.after.Store(m.below(2) == 0)
			n.transport.at.Store(int64(1 + m.below(25)))
		case 2:
			n.transport.asleep.Store(false)
			_ = n.outbox.Flush(n.ctx)
			m.leave(n)
		case 3:
			m.delete(format.LeaseFile)
			n.steward.Look()
		case 4:
			n.transport.asleep.Store(!n.transport.asleep.Load())
		case 5:
			time.Sleep(time.Duration(m.below(20)) * time.Minute)
		case 6:
			m.lose(n)
		default:
			if n.transport.asleep.Load() {
				continue
			}
			if id, ok := n.save(1 + m.below(3)); ok {
				m.saved[n] = append(m.saved[n], id)
			}
		}
		m.bury()
	}
}

func (m *model) join() {
	if len(m.alive) == 6 {
		return
	}
	m.names++
	m.alive = append(m.alive, m.start(fmt.Sprint("node", m.names)))
}

// leave ends a node in order.
func (m *model) leave(n *node) {
	n.transport.asleep.Store(false)
	if n.outbox.Stats().Waiting > 0 || n.ctx.Err() != nil {
		for _, id := range m.saved[n] { // a list that was put and is not seen in the log may be lost by a fork
			m.unsure[id] = true
		}
	}
	n.stop()
	m.alive = slices.DeleteFunc(m.alive, func(o *node) bool { return o == n })
}

// lose takes an object away, and reports it.
func (m *model) lose(n *node) {
	ids := m.saved[n]
	if len(ids) == 0 {
		return
	}
	id := ids[m.below(len(ids))]
	m.delete(format.DataName(id).String())
	m.removed = append(m.removed, id)
	n.outbox.Lose(id, format.CauseLost)
}

// bury takes note of nodes that have died.
func (m *model) bury() {
	for _, n := range slices.Clone(m.alive) {
		if n.ctx.Err() != nil {
			m.leave(n)
		}
	}
}

func (m *model) check() {
	for _, n := range m.alive {
		n.transport.asleep.Store(false)
		n.transport.at.Store(0)
	}
	m.bury()
	m.join()
	time.Sleep(30 * time.Minute)
	last := m.alive[len(m.alive)-1]
	final := last.mustReady().mustSave(1)
	m.saved[last] = append(m.saved[last], final)
	time.Sleep(2 * time.Hour)
	if n := len(m.stewards()); n != 1 {
		m.t.Errorf("%d stewards", n)
	}
	joined := m.joined("joined").book.live()
	for _, n := range m.alive {
		live := n.book.live()
		for _, pair := range [][2][]format.ObjectID{{live, joined}, {joined, live}} {
			for _, id := range pair[0] {
				// Without conditional writes what a dead node told may be in a log object that another took the place of.
				sure := m.conditional || !m.unsure[id] && !slices.Contains(m.removed, id)
				if sure && !slices.Contains(pair[1], id) {
					m.t.Errorf("%s and one that joins don't agree on %s", n.name, id)
				}
			}
		}
	}
	for n, ids := range m.saved {
		for _, id := range ids {
			if !m.unsure[id] && !slices.Contains(m.removed, id) && !slices.Contains(joined, id) {
				m.t.Errorf("%s of %s is not offered", id, n.name)
			}
		}
	}
	if left := m.list(format.InPrefix); len(left) > 0 {
		m.t.Errorf("%d lists of writers are left", len(left))
	}
}
