package host

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// check compares every count of the arena with what its spans hold.
func (a *Arena) check(t interface{ Fatalf(string, ...any) }) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var used, clean int64
	free := 0
	found := 0
	taken := map[*class]int{}
	idle := map[*class]int{}
	for u, p := range a.units {
		if p == nil {
			free++
			continue
		}
		if p.first != u {
			continue
		}
		busy, filled := 0, 0
		for i := range p.slots {
			s := &p.slots[i]
			if s.pins > 0 {
				busy++
				used += int64(p.class.slotBytes)
			}
			if s.state != slotFree {
				filled++
			}
			if (s.state == slotDirty || s.state == slotFilling) && s.pins != 1 && s.rec == (Record{}) {
				t.Fatalf("a dirty slot has %d owners", s.pins)
			}
			if s.state == slotClean || s.state == slotFilling {
				if found++; a.records[s.rec.ID] != s {
					t.Fatalf("a slot is not found by its record")
				}
			}
			if s.state == slotClean {
				clean += int64(p.class.slotBytes)
			}
		}
		if busy != p.busy || filled != p.taken {
			t.Fatalf("span counts %d busy, %d taken; want %d, %d", p.busy, p.taken, busy, filled)
		}
		if !p.draining {
			taken[p.class] += len(p.slots) - filled
			if filled == 0 {
				idle[p.class]++
			}
		}
	}
	for _, c := range a.classes {
		n := 0
		for s := c.free.head; s != nil; s = s.next {
			n++
		}
		if n != taken[c] || c.idle != idle[c] {
			t.Fatalf("class of %d bytes: %d free in %d idle spans; want %d in %d", c.slotBytes, n, c.idle, taken[c], idle[c])
		}
	}
	if used != a.usedBytes || clean != a.cleanBytes || free != a.freeUnits || found != len(a.records) {
		t.Fatalf("used %d clean %d free %d records %d; want %d %d %d %d",
			a.usedBytes, a.cleanBytes, a.freeUnits, len(a.records), used, clean, free, found)
	}
}

// Handles of two accounts go through random operations. A slot that is written to has
// one owner, what is found has its own record's bytes, and no account holds more than its
// share, unless it is one slot.
func TestRandomOperationsKeepEveryPromise(t *testing.T) {
	payloads := []int{4096, 5000, 20 << 10, testUnit, 3 * testUnit}
	rapid.Check(t, func(t *rapid.T) {
		a, err := New(Options{Bytes: 6 * testUnit, unitBytes: testUnit, SmallPages: true})
		if err != nil {
			t.Fatal(err)
		}
		c0, _ := a.Account(AccountOptions{})
		c1, _ := a.Account(AccountOptions{LoadBytes: 2 * testUnit})
		accounts := []*Account{c0, c1}
		handles := make([]Slot, 12)
		state := make([]Outcome, len(handles))
		number := make([]int, len(handles))
		owner := map[int64]int{} // offset of a slot being written to
		published := make([]bool, len(handles))
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			i := rapid.IntRange(0, len(handles)-1).Draw(t, "handle")
			s := &handles[i]
			if state[i] == Pending && s.held.Load() && s.phase == phaseTaken {
				state[i] = Hit
			} else if state[i] == Pending && !s.held.Load() {
				state[i] = Full
			}
			switch {
			case state[i] == Full:
				n := rapid.IntRange(0, 14).Draw(t, "record")
				payload := payloads[n%len(payloads)]
				c := accounts[rapid.IntRange(0, 1).Draw(t, "account")]
				number[i], published[i] = n, false
				if rapid.Bool().Draw(t, "save") {
					if c.ReserveSave(s, payload) {
						state[i] = Fill
					}
				} else {
					state[i], _ = c.Acquire(context.Background(), s, record(n), payload, false)
				}
				if state[i] == Fill {
					if _, taken := owner[s.Offset()]; taken {
						t.Fatalf("slot at %d has two owners", s.Offset())
					}
					owner[s.Offset()] = i
					s.Bytes()[0], s.Bytes()[payload-1] = byte(n), byte(n)
				}
			case state[i] == Fill && !published[i] && rapid.Bool().Draw(t, "publish"):
				published[i] = s.Publish(record(number[i]))
				if published[i] {
					delete(owner, s.Offset())
				}
			case rapid.IntRange(0, 9).Draw(t, "drop") == 0:
				a.Drop(record(number[i]).ID)
			default:
				if state[i] == Fill && !published[i] {
					delete(owner, s.Offset())
				}
				s.Release()
				state[i] = Full
			}
			for j := range handles {
				h := &handles[j]
				if b := h.Bytes(); b != nil && (b[0] != byte(number[j]) || b[len(b)-1] != byte(number[j])) {
					t.Fatalf("handle %d has the bytes of another record", j)
				}
			}
			for _, c := range accounts {
				checkUsage(t, c)
			}
			a.check(t)
		}
		for i := range handles {
			handles[i].Release()
		}
		if st := a.Stats(); st.UsedBytes != 0 {
			t.Fatalf("%d bytes are still in use", st.UsedBytes)
		}
		for _, c := range accounts {
			if u := c.Usage(); u.LoadBytes != 0 || u.SaveBytes != 0 {
				t.Fatalf("%+v is still charged", u)
			}
			c.Close()
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func checkUsage(t interface{ Fatalf(string, ...any) }, c *Account) {
	u := c.Usage()
	largest := int64(3 * testUnit)
	if u.LoadBytes > max(u.LoadLimitBytes, largest) || u.SaveBytes > max(u.SaveLimitBytes, largest) {
		t.Fatalf("%+v is over the limit", u)
	}
}

// Many goroutines load and save at once, waiting for each other's reads and for memory.
func TestConcurrentRanksShareTheArena(t *testing.T) {
	a := newArena(t, 6)
	payloads := []int{4096, 12 << 10, testUnit, 2*testUnit + 5}
	var wg sync.WaitGroup
	for rank := range 3 {
		c := newAccount(t, a, AccountOptions{})
		for worker := range 3 {
			wg.Go(func() {
				g := rand.New(rand.NewPCG(uint64(rank), uint64(worker)))
				var s Slot
				for range 1500 {
					n := g.IntN(40)
					payload := payloads[n%len(payloads)]
					if g.IntN(4) == 0 {
						if c.ReserveSave(&s, payload) {
							s.Bytes()[0] = byte(n)
							s.Publish(record(n))
						}
					} else {
						load(t, c, &s, n, payload)
					}
					if g.IntN(50) == 0 {
						a.Drop(record(n).ID)
					}
					wait := sync.WaitGroup{}
					wait.Go(s.Release) // as a callback of the store does
					s.Release()
					wait.Wait()
				}
			})
		}
	}
	wg.Wait()
	a.check(t)
	if st := a.Stats(); st.UsedBytes != 0 || st.Waiting != 0 {
		t.Errorf("%+v", st)
	}
}

func load(t *testing.T, c *Account, s *Slot, n, payload int) {
	switch o, err := c.Acquire(context.Background(), s, record(n), payload, true); o {
	case Fill:
		s.Bytes()[0] = byte(n)
		s.Publish(record(n))
	case Pending:
		if s.Wait(context.Background()) == nil && s.Bytes()[0] != byte(n) {
			t.Errorf("record %d has other bytes", n)
		}
	case Hit:
		if s.Bytes()[0] != byte(n) {
			t.Errorf("record %d has other bytes", n)
		}
	default:
		t.Errorf("load of %d: %v", n, err)
	}
}
