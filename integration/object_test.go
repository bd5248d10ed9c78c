package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/engine/model"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/store/object/format"
)

// lineWith reports whether a line of a log has all the parts.
func lineWith(log string, parts ...string) bool {
	for line := range strings.Lines(log) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			return true
		}
	}
	return false
}

// asked are prompts, with what an engine without kvconn answers.
type asked struct {
	change func(*engine.Options)
	ps     [][]uint32
	want   []engine.Result
}

// ask makes n prompts for engines with weights of their own: no other prompts' records are in one object with theirs.
func ask(t *testing.T, seed, n int) asked {
	t.Helper()
	a := asked{ps: prompts(seed, n), change: func(o *engine.Options) { o.Model = model.Tiny(uint64(seed)) }}
	a.want = reference(t, a.change, a.ps)
	return a
}

// engine starts one that the prompts are for.
func (a *asked) engine(t *testing.T, n *node) *instance {
	t.Helper()
	return newInstance(t, n, a.change)
}

// of runs prompts on an engine and compares the answers.
func (a *asked) of(e *instance, what string) []engine.Result {
	e.t.Helper()
	got := e.run(what, a.ps)
	same(e.t, what, got, a.want)
	return got
}

// all runs prompts that must come from the cache as a whole.
func (a *asked) all(e *instance, what string) {
	e.t.Helper()
	for k, r := range a.of(e, what) {
		if n := whole(a.ps[k], 8); r.CachedTokens != n || r.RecomputedTokens > 0 {
			e.t.Errorf("%s: prompt %d: %d tokens from the cache, %d recomputed; want all %d", what, k, r.CachedTokens, r.RecomputedTokens, n)
		}
	}
}

// comeBack runs prompts, and saves nothing, until they come from the bucket as a whole: a bucket that was slow is
// measured again before it is asked for much.
func (a *asked) comeBack(n *node) {
	n.t.Helper()
	e := a.engine(n.t, n)
	defer e.close()
	before, all, round := n.fetched(), 0, 0
	for _, p := range a.ps {
		all += whole(p, 8)
	}
	n.wait("hits from the bucket", func() bool {
		round++
		requests := requestsOf(fmt.Sprint("come back ", round), a.ps)
		for k := range requests {
			requests[k].NoSave = true
		}
		got := e.serve(requests...)
		same(n.t, "come back", got, a.want)
		return cached(got) == all
	})
	if n.fetched() == before {
		n.t.Error("what came back is not from the bucket")
	}
}

// bucketFault is something that a bucket, or the way to it, does to a node.
type bucketFault struct {
	name   string
	script []s3proxy.Clause
	// says is the line in the node's log that has a remedy. Empty: the fault costs time alone, and is no news.
	says string
	// quick ones are always tested.
	quick bool
}

const (
	notWorking = "the bucket does not work: its records are not offered until it does"
	unreadable = "an object of the bucket cannot be read: its records are misses from now on"
)

func bucketFaults() []bucketFault {
	// What a data object's name looks like; other objects are news.
	const data = below + "kv1/d/**"
	all := func(e s3proxy.Effect) []s3proxy.Clause { return []s3proxy.Clause{{Do: e}} }
	loads := func(e s3proxy.Effect) []s3proxy.Clause { return []s3proxy.Clause{{On: s3proxy.Get, Name: data, Do: e}} }
	refused := func(status int, code string) []s3proxy.Clause { return all(s3proxy.Effect{Status: status, Code: code}) }
	return []bucketFault{
		{name: "slow", script: all(s3proxy.Effect{Delay: 300 * time.Millisecond})},
		{name: "server errors", script: refused(http.StatusInternalServerError, "InternalError"), says: notWorking},
		{name: "slow down", script: refused(http.StatusServiceUnavailable, "SlowDown"), says: notWorking, quick: true},
		{name: "throttled to some requests a second", script: all(s3proxy.Effect{Rate: 1})},
		{name: "a page of a proxy", script: all(s3proxy.Effect{Page: http.StatusBadGateway}), says: notWorking},
		{name: "resets", script: all(s3proxy.Effect{Reset: true}), says: notWorking},
		{name: "answers that are lost", script: all(s3proxy.Effect{Lost: true}), says: notWorking},
		{name: "bodies cut short", script: loads(s3proxy.Effect{Cut: 5000}), says: unreadable},
		{name: "wrong bytes", script: loads(s3proxy.Effect{Flip: 200}), says: unreadable, quick: true},
		{name: "missing after a list", script: loads(s3proxy.Effect{Status: http.StatusNotFound, Code: "NoSuchKey"}), says: unreadable},
		{name: "whole objects for ranges", script: loads(s3proxy.Effect{Whole: true})},
		{name: "expired credentials", script: refused(http.StatusForbidden, "ExpiredToken"), says: notWorking},
		{
			name: "clocks that differ", says: notWorking,
			script: append(refused(http.StatusForbidden, "RequestTimeTooSkewed"), all(s3proxy.Effect{Skew: 20 * time.Minute})...),
		},
		{name: "a hang", script: all(s3proxy.Effect{Delay: time.Hour}), says: notWorking},
		{name: "a hang in the middle of bodies", script: loads(s3proxy.Effect{Stall: time.Hour})},
	}
}

// Whatever a bucket does: the answers are those without a cache, no request hangs, disk and memory go on serving, the
// log says what to do, and once the bucket works again so do hits from it.
func TestBucketThatFails(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	first, second := ask(t, 300, 2), ask(t, 301, 2)
	_, records := c.filled(t, nil, first, second)
	for i, f := range bucketFaults() {
		t.Run(f.name, func(t *testing.T) {
			if !f.quick {
				notQuick(t)
			}
			t.Parallel()
			n, proxy := c.nodeBehind(t, "--load-timeout", "10s")
			n.start()
			n.follows(records)
			fresh := ask(t, 310+i, 1)
			known, other := first.engine(t, n), fresh.engine(t, n)
			proxy.Play(f.script...)
			first.of(known, "in the bucket")
			fresh.of(other, "nowhere")
			n.saved()
			before := n.fetched()
			first.all(known, "on disk")
			fresh.all(other, "on disk, and nowhere else")
			if n := n.fetched(); n != before {
				t.Errorf("%d records came from the bucket that are on disk", n-before)
			}
			if f.says != "" {
				n.says(f.says)
			}
			if proxy.Injected() == 0 {
				t.Error("the bucket did nothing wrong")
			}
			proxy.Stop()
			second.comeBack(n)
			if thorough() {
				n.sent()
			}
			n.stop()
		})
	}
}

// What happened to data objects in the bucket itself is found out, whichever object it happened to: the answers stay
// the same, and what is computed again goes back into the bucket, where the next node finds it.
func TestObjectsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, damage := range []struct {
		name  string
		quick bool
		do    func(c *cloud, objects []string)
	}{
		{"flipped bits", true, func(c *cloud, objects []string) {
			for _, name := range objects {
				c.rewrite(name, func(b []byte) []byte {
					for i := 600; i < len(b); i += 1000 {
						b[i] ^= 4
					}
					return b
				})
			}
		}},
		{"missing", false, func(c *cloud, objects []string) { c.remove(objects...) }},
		{"cut", false, func(c *cloud, objects []string) {
			for _, name := range objects {
				c.rewrite(name, func(b []byte) []byte { return b[:len(b)/3] })
			}
		}},
		{"empty", false, func(c *cloud, objects []string) {
			for _, name := range objects {
				c.rewrite(name, func([]byte) []byte { return nil })
			}
		}},
		{"swapped", false, func(c *cloud, objects []string) {
			last := objects[len(objects)-1]
			for _, name := range objects {
				c.rewrite(name, func(b []byte) []byte {
					c.rewrite(last, func(of []byte) []byte { b, of = of, b; return of })
					return b
				})
			}
		}},
	} {
		t.Run(damage.name, func(t *testing.T) {
			if !damage.quick {
				notQuick(t)
			}
			t.Parallel()
			c := newCloud(t)
			first, second := ask(t, 330, 2), ask(t, 331, 2)
			_, records := c.filled(t, nil, first, second)
			b := c.node(t)
			b.start()
			b.follows(records)
			damage.do(c, c.names(format.DataPrefix))
			for _, q := range []asked{first, second} {
				e := q.engine(t, b)
				q.of(e, "what cannot be read")
				b.saved()
				q.all(e, "computed again")
			}
			b.says(unreadable)
			if !thorough() {
				return
			}
			// What it had loaded of an object before that turned out damaged it took for uploaded.
			b.stop()
			b.start()
			b.sent()
			third := c.node(t)
			third.start()
			third.follows(1)
			first.comeBack(third)
			second.comeBack(third)
			b.stop()
		})
	}
}
