package integration

import (
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

// A daemon starts and serves while its bucket is not there, says what to do, and uploads what it has once it is.
func TestBucketThatComesLate(t *testing.T) {
	notQuick(t)
	t.Parallel()
	for _, late := range []struct {
		name   string
		effect s3proxy.Effect
	}{
		{"no bucket", s3proxy.Effect{Status: http.StatusNotFound, Code: "NoSuchBucket"}},
		{"no server", s3proxy.Effect{Reset: true}},
		{"a server that hangs", s3proxy.Effect{Delay: time.Hour}},
		{"no permission", s3proxy.Effect{Status: http.StatusForbidden, Code: "AccessDenied"}},
		{"wrong credentials", s3proxy.Effect{Status: http.StatusForbidden, Code: "InvalidAccessKeyId"}},
	} {
		t.Run(late.name, func(t *testing.T) {
			t.Parallel()
			c, q := newCloud(t), ask(t, 350, 2)
			a, proxy := c.nodeBehind(t)
			proxy.Play(s3proxy.Clause{Do: late.effect})
			a.start()
			e := q.engine(t, a)
			q.of(e, "without the bucket")
			a.saved()
			q.all(e, "from disk")
			a.says("object tier: the bucket")
			proxy.Stop()
			a.waitLong("the bucket can be written", func() bool { return a.object().Upload.Uploaded > 0 })
			records := a.listed()
			b := c.node(t)
			b.start()
			b.follows(records)
			q.comeBack(b)
			b.stop()
			a.stop()
		})
	}
}

// A node whose key file is another one than that of the bucket, or that has none, reads and tells nothing, goes on with
// what it has itself, and says what it lacks; the others notice nothing. With the right key it gets what is there.
func TestNodeWithTheWrongKey(t *testing.T) {
	t.Parallel()
	for _, wrong := range []struct {
		name, says string
		quick      bool
		args       []string
	}{
		{"another key", "a list in the bucket was not used", true, []string{"--key-file", keyFile(t)}},
		{"no key", "the bucket cannot be followed", false, nil},
	} {
		t.Run(wrong.name, func(t *testing.T) {
			if !wrong.quick {
				notQuick(t)
			}
			t.Parallel()
			c, q, right := newCloud(t), ask(t, 360, 2), []string{"--key-file", keyFile(t)}
			a, records := c.filled(t, right, q)
			objects := len(c.names(format.DataPrefix))
			b := c.node(t, wrong.args...)
			b.start()
			b.says(wrong.says)
			e := q.engine(t, b)
			q.of(e, "with the wrong key")
			b.saved()
			q.all(e, "from its own disk")
			if n := b.fetched(); n != 0 {
				t.Errorf("%d records were used that this node has no key for", n)
			}
			b.stop() // what waits is uploaded
			if n := len(c.names(format.DataPrefix)); n != objects {
				t.Errorf("%d objects, %d before a node with the wrong key came", n, objects)
			}
			if o := a.object(); o.Records != records || !o.Offers {
				t.Errorf("the node with the right key knows of %d records, offers: %t; want %d", o.Records, o.Offers, records)
			}
			b = c.node(t, right...)
			b.start()
			b.follows(records)
			q.comeBack(b)
			b.stop()
		})
	}
}

// keyFile makes a key file.
func keyFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "keys")
	if _, err := seal.Create(name); err != nil {
		t.Fatal(err)
	}
	return name
}

// A node that is killed while it uploads leaves nothing in the bucket that others come upon, and goes on after its next
// start.
func TestNodeKilledWhileItUploads(t *testing.T) {
	notQuick(t)
	t.Parallel()
	for _, held := range []struct {
		name string
		of   string // the names that it is killed at writing one of
		lost bool   // the request is carried out, and the answer does not come
	}{
		{"before an object is written", format.DataPrefix, false},
		{"when an object is written", format.DataPrefix, true},
		{"before it tells of the object", format.InPrefix, false},
		{"when it has told", format.InPrefix, true},
		{"before the log has it", format.LogPrefix, false},
		{"when the log has it", format.LogPrefix, true},
		{"before the first file of the bucket", format.FormatFile, false},
		{"before it is steward", format.LeaseFile, false},
	} {
		t.Run(held.name, func(t *testing.T) {
			t.Parallel()
			c, q := newCloud(t), ask(t, 370, 2)
			a, proxy := c.nodeBehind(t)
			name := below + held.of
			if held.of != format.FormatFile && held.of != format.LeaseFile {
				name += "**"
			}
			hold := s3proxy.Effect{Delay: time.Hour}
			if held.lost {
				hold = s3proxy.Effect{Lost: true}
			}
			proxy.Play(s3proxy.Clause{On: s3proxy.Put, Name: name, Do: hold})
			a.start()
			e := q.engine(t, a)
			q.of(e, "computed")
			a.wait("the upload has come so far", func() bool { return proxy.Injected() > 0 })
			a.kill()
			proxy.Stop()
			// In a minute nobody would take it to be held.
			c.remove(format.LeaseFile)
			a.start()
			q.of(e, "computed again")
			records := a.listed()
			b := c.node(t)
			b.start()
			b.follows(records)
			q.comeBack(b)
			b.stop()
			a.stop()
			c.fsck()
		})
	}
}

// A bucket that is emptied under running nodes costs them its hits and nothing else, and they fill it again.
func TestBucketEmptiedUnderANode(t *testing.T) {
	notQuick(t)
	t.Parallel()
	c, q, fresh := newCloud(t), ask(t, 380, 2), ask(t, 381, 1)
	a, records := c.filled(t, nil, q)
	b := c.node(t)
	b.start()
	b.follows(records)
	c.remove(c.names(format.Root)...)
	for _, n := range []*node{a, b} {
		e, other := q.engine(t, n), fresh.engine(t, n)
		q.of(e, "it was in the bucket")
		fresh.of(other, "it was nowhere")
		n.saved()
		q.all(e, "from disk")
		fresh.all(other, "from disk")
	}
	third := c.node(t)
	third.start()
	third.waitLong("the bucket is filled again", func() bool { return third.object().Records >= records })
	q.comeBack(third)
	for _, n := range []*node{a, b} {
		n.waitLong("the log says that the bucket was emptied", func() bool { return lineWith(n.log.String(), "the bucket was emptied") })
	}
}
