package host

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/property"
)

// check compares every count, list and index of the arena with what its slots hold.
func (a *Arena) check(t interface{ Fatalf(string, ...any) }) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var used, clean, ahead int64
	unassigned, found, waited := 0, 0, 0
	type want struct{ free, clean, idle, spans, all int }
	classes := map[*class]*want{}
	drained := 0
	for u, at := range a.units {
		promised := a.drain.owner != nil && u >= a.drain.first && u < a.drain.first+a.drain.units
		if at == 0 {
			unassigned++
			if promised {
				drained++
			}
			if isFree := !a.unfree.Has(u); isFree == promised || a.held.Has(u) != promised {
				t.Fatalf("unit %d is unassigned and promised: %t; free: %t, held: %t", u, promised, isFree, a.held.Has(u))
			}
			continue
		}
		c, p := a.classOfSpan(at), a.span(at)
		if !a.unfree.Has(u) {
			t.Fatalf("unit %d of a span is free", u)
		}
		if held := p.busy > 0 || p.draining || promised; a.held.Has(u) != held {
			t.Fatalf("unit %d: held %t, want %t", u, a.held.Has(u), held)
		}
		if int(p.first) != u {
			continue
		}
		if classes[c] == nil {
			classes[c] = new(want)
		}
		w := classes[c]
		w.all++
		busy, filled := 0, 0
		for i := range slotID(c.perSpan) {
			id := a.firstSlot(at) + i
			s := a.slot(id)
			if a.spanOf(id) != at {
				t.Fatalf("slot %d is taken for one of span %d, not %d", id, a.spanOf(id), at)
			}
			if s.pins > 0 {
				busy++
				used += int64(c.slotBytes)
			}
			if s.state != slotFree {
				filled++
			} else if !p.draining {
				w.free++
			}
			if (s.state == slotDirty || s.state == slotFilling) && s.pins == 0 {
				t.Fatalf("a dirty slot has no owner")
			}
			if q, ok := a.waiters[id]; ok && s.state == slotFilling && q.Len() > 0 {
				waited++
			}
			if s.ahead != 0 {
				ahead += int64(c.slotBytes)
				if s.state == slotFree {
					t.Fatalf("a free slot holds what was read before its load")
				}
			}
			if s.state == slotClean || s.state == slotFilling {
				found++
				at := *a.index.bucket(s.hash)
				for at != 0 && at != id {
					at = a.slot(at).chain
				}
				if at == 0 {
					t.Fatalf("a slot is not found by its record")
				}
			}
			if s.state == slotClean {
				clean += int64(c.slotBytes)
				if s.pins == 0 {
					w.clean++
				}
			}
		}
		if busy != int(p.busy) || filled != int(p.taken) {
			t.Fatalf("span counts %d busy, %d taken; want %d, %d", p.busy, p.taken, busy, filled)
		}
		if !p.draining {
			w.spans++
			if filled == 0 {
				w.idle++
			}
		}
	}
	if len(classes) != len(a.live) {
		t.Fatalf("%d classes have spans, %d are listed", len(classes), len(a.live))
	}
	for _, c := range a.live {
		got := want{idle: len(c.idle), spans: c.spans, all: c.all}
		for id := c.free.head; id != 0; id = a.slot(id).next {
			got.free++
		}
		for id := c.clean.head; id != 0; id = a.slot(id).next {
			got.clean++
		}
		idle := 0
		for place, at := range c.idle {
			if a.span(at).idle == uint32(place) {
				idle++
			}
		}
		if classes[c] == nil || got != *classes[c] || idle != len(c.idle) {
			t.Fatalf("class of %d bytes: %+v, %d spans in the list of idle ones; want %+v", c.slotBytes, got, idle, classes[c])
		}
	}
	uses := 0
	for _, s := range a.spaces {
		uses += s.uses
	}
	if uses != found+a.accounts || len(a.namespaces)+len(a.vacantNamespaces) != len(a.spaces)-1 {
		t.Fatalf("%d uses of %d namespaces, %d numbers vacant of %d; want %d uses",
			uses, len(a.namespaces), len(a.vacantNamespaces), len(a.spaces)-1, found+a.accounts)
	}
	if ahead != a.aheads.all || ahead > int64(len(a.units)*a.opts.unitBytes/prefetchShare) {
		t.Fatalf("%d bytes were read before their load, want %d, in an arena of %d units", a.aheads.all, ahead, len(a.units))
	}
	if used != a.usedBytes || clean != a.cleanBytes || unassigned != a.freeUnits || found != a.index.len || waited != len(a.waiters) || drained != a.drain.drained {
		t.Fatalf("used %d clean %d free %d records %d waited %d drained %d; want %d %d %d %d %d %d",
			a.usedBytes, a.cleanBytes, a.freeUnits, a.index.len, len(a.waiters), a.drain.drained, used, clean, unassigned, found, waited, drained)
	}
}

// Handles of two accounts go through random operations. A slot that is written to has
// one owner, what is found has its own record's bytes, and no account holds more than its
// share, unless it is one slot.
func TestRandomOperationsKeepEveryPromise(t *testing.T) {
	payloads := []int{4096, 5000, 20 << 10, testUnit, 3 * testUnit}
	property.Check(t, func(t *rapid.T) {
		a, err := New(Options{Bytes: 6 * testUnit, unitBytes: testUnit})
		if err != nil {
			t.Fatal(err)
		}
		c0, _ := a.Account(AccountOptions{})
		c1, _ := a.Account(AccountOptions{LoadBytes: 2 * testUnit})
		c2, _ := a.Account(AccountOptions{})
		c2.readAhead() // reads before loads, and saves nothing
		accounts := []*Account{c0, c1, c2}
		handles := make([]Slot, 12)
		state := make([]Outcome, len(handles))
		number := make([]int, len(handles))
		owner := map[int64]int{} // offset of a slot being written to
		published := make([]bool, len(handles))
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			i := rapid.IntRange(0, len(handles)-1).Draw(t, "handle")
			s := &handles[i]
			if state[i] == Pending {
				state[i] = s.outcome()
			}
			if rapid.IntRange(0, 9).Draw(t, "forget") == 0 {
				a.Forget(connector.NamespaceDigest{})
				if st := a.Stats(); st.CleanBytes != 0 {
					t.Fatalf("%d bytes of records are left", st.CleanBytes)
				}
				a.check(t)
			}
			switch {
			case state[i] == Full:
				n := rapid.IntRange(0, 14).Draw(t, "record")
				payload := payloads[n%len(payloads)]
				c := accounts[rapid.IntRange(0, 2).Draw(t, "account")]
				number[i], published[i] = n, false
				if !c.ahead && rapid.Bool().Draw(t, "save") {
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
			case s.outcome() == Hit && rapid.Bool().Draw(t, "pin also"):
				var also Slot
				if accounts[rapid.IntRange(0, 1).Draw(t, "for")].pinAlso(&also, s) {
					s.Release()
					a.check(t)
					if b := also.Bytes(); b[0] != byte(number[i]) {
						t.Fatalf("handle %d has the bytes of another record", i)
					}
					also.Release()
					state[i] = Full
				}
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
			if u := c.usage(); u.LoadBytes != 0 || u.SaveBytes != 0 {
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
	u := c.usage()
	largest := int64(3 * testUnit)
	if u.LoadBytes > max(u.LoadLimitBytes, largest) || u.SaveBytes > max(u.SaveLimitBytes, largest) {
		t.Fatalf("%+v is over the limit", u)
	}
}

// Waiters of three accounts come, give up and are served while slots of all sizes are pinned
// and released, so that memory is drained for them again and again. After each step the
// books are right, and once nothing is pinned everybody is served.
func TestWaitersAndDrainsKeepTheBooks(t *testing.T) {
	payloads := []int{4096, 20 << 10, testUnit, 2 * testUnit, 3 * testUnit}
	property.Check(t, func(t *rapid.T) {
		a, err := New(Options{Bytes: 5 * testUnit, unitBytes: testUnit})
		if err != nil {
			t.Fatal(err)
		}
		var accounts []*Account
		for range 3 {
			c, _ := a.Account(AccountOptions{})
			c.SetActive(rapid.Bool().Draw(t, "active"))
			accounts = append(accounts, c)
		}
		type waiter struct {
			slot   *Slot
			cancel context.CancelFunc
			done   chan error
		}
		var waiters []waiter
		pins := make([]Slot, 8)
		held := make([]bool, len(pins))
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch i := rapid.IntRange(0, len(pins)-1).Draw(t, "pin"); rapid.IntRange(0, 5).Draw(t, "what") {
			case 5:
				a.Forget(connector.NamespaceDigest{})
			case 0:
				n := rapid.IntRange(0, 30).Draw(t, "record")
				ctx, cancel := context.WithCancel(context.Background())
				w := waiter{new(Slot), cancel, make(chan error, 1)}
				c := accounts[n%len(accounts)]
				before := a.settled()
				go func() {
					o, err := c.Acquire(ctx, w.slot, record(100+n), payloads[n%len(payloads)], true)
					if o == Pending {
						err = w.slot.Wait(ctx)
					}
					w.done <- err
				}()
				for a.settled() == before {
					runtime.Gosched()
				}
				waiters = append(waiters, w)
			case 1:
				if len(waiters) > 0 {
					w := waiters[0]
					waiters = waiters[1:]
					w.cancel()
					<-w.done
					w.slot.Release()
				}
			default:
				if held[i] {
					pins[i].Release()
					held[i] = false
					break
				}
				n := rapid.IntRange(0, 30).Draw(t, "record")
				o, _ := accounts[i%len(accounts)].Acquire(context.Background(), &pins[i], record(n), payloads[n%len(payloads)], false)
				if o == Pending {
					pins[i].Release()
				}
				if held[i] = o == Fill || o == Hit; o == Fill {
					pins[i].Publish(record(n))
				}
			}
			a.check(t)
		}
		for i := range pins {
			pins[i].Release()
		}
		var all sync.WaitGroup
		ends := make([]error, len(waiters))
		for i, w := range waiters { // in any order: each holds what it got until it is released
			all.Go(func() {
				ends[i] = <-w.done
				w.slot.Release()
				w.cancel()
			})
		}
		all.Wait()
		for _, err := range ends {
			if err != nil && !errors.Is(err, ErrFillFailed) {
				t.Fatalf("a waiter ends with %v", err)
			}
		}
		a.check(t)
		if st := a.Stats(); st.UsedBytes != 0 || st.Waiting != 0 {
			t.Fatalf("left behind: %+v", st)
		}
		for _, c := range accounts {
			c.Close()
		}
		if st := a.Stats(); st.Accounts != 0 || st.Active != 0 {
			t.Fatalf("left behind: %+v", st)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// settled changes whenever a handle has got what it wants, or waits for it.
func (a *Arena) settled() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count.Waits + a.count.Hits + a.count.Misses + a.count.Joined
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
						loadOne(t, c, &s, n, payload)
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

func loadOne(t *testing.T, c *Account, s *Slot, n, payload int) {
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
