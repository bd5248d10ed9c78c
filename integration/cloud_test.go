package integration

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/versitygw"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store/object/bucket"
)

// Where the nodes of a test have their bucket.
const (
	cloudBucket = "bucket"
	cloudURL    = "s3://" + cloudBucket + "/cache"
	// below begins the names of the tier's objects, as a proxy sees them.
	below = "cache/"
)

// cloud is a bucket that nodes share: on versitygw if that is asked for, else on a server in memory.
type cloud struct {
	t        *testing.T
	endpoint string
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	if os.Getenv(versitygw.BinaryEnv) != "" {
		return &cloud{t, versitygw.Start(t, cloudBucket).Endpoint}
	}
	return &cloud{t, listen(t, s3mem.New(s3mem.Options{}, cloudBucket))}
}

// listen serves a handler until the test ends, and returns its URL.
func listen(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// thorough says whether all variants of tests with buckets are wanted, and not only the quick ones.
func thorough() bool { return long() || os.Getenv(versitygw.BinaryEnv) != "" }

// notQuick skips a test unless all are wanted.
func notQuick(t *testing.T) {
	t.Helper()
	if !thorough() {
		t.Skipf("KVCONN_TEST_LONG=1, or %s, runs it", versitygw.BinaryEnv)
	}
}

// node is a node that shares the bucket. Whatever is there is worth a load, and is uploaded at once.
func (c *cloud) node(t *testing.T, args ...string) *node {
	t.Helper()
	return c.nodeAt(t, c.endpoint, args...)
}

// nodeBehind is a node with a proxy between it and the bucket.
func (c *cloud) nodeBehind(t *testing.T, args ...string) (*node, *s3proxy.Proxy) {
	t.Helper()
	p, endpoint := c.proxy(t)
	return c.nodeAt(t, endpoint, args...), p
}

// proxy is a way to the bucket that can fail, and its URL.
func (c *cloud) proxy(t *testing.T) (p *s3proxy.Proxy, endpoint string) {
	t.Helper()
	server, err := url.Parse(c.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	p = s3proxy.New(s3proxy.To(server))
	endpoint = listen(t, p)
	t.Cleanup(p.Stop)
	return p, endpoint
}

func (c *cloud) nodeAt(t *testing.T, endpoint string, args ...string) *node {
	t.Helper()
	n := newMemoryNode(t, append([]string{
		"--object", cloudURL, "--object-endpoint", endpoint, "--object-region", "us-east-1", "--object-upload-age", "100ms",
		"--prefill-tokens-per-s", "1",
	}, args...)...)
	n.environ = credentials()
	return n
}

// credentials are those of the bucket.
func credentials() []string {
	return []string{
		"AWS_ACCESS_KEY_ID=" + versitygw.Access, "AWS_SECRET_ACCESS_KEY=" + versitygw.Secret, "AWS_EC2_METADATA_DISABLED=true",
	}
}

// client speaks with the bucket itself.
func (c *cloud) client() *bucket.Bucket {
	c.t.Helper()
	b, err := bucket.Open(bucket.Options{
		URL: cloudURL, Endpoint: c.endpoint, Region: "us-east-1", Keys: &bucket.Keys{ID: versitygw.Access, Secret: versitygw.Secret},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(b.Close)
	return b
}

// names are those of the bucket's objects that begin with a prefix.
func (c *cloud) names(prefix string) (names []string) {
	c.t.Helper()
	const most = 10_000
	all, err := c.client().List(c.t.Context(), prefix, "", most)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, m := range all {
		names = append(names, m.Name)
	}
	return names
}

// remove deletes objects of the bucket.
func (c *cloud) remove(names ...string) {
	c.t.Helper()
	if err := c.client().Delete(c.t.Context(), names); err != nil {
		c.t.Fatal(err)
	}
}

// rewrite replaces an object by what change makes of it.
func (c *cloud) rewrite(name string, change func([]byte) []byte) {
	c.t.Helper()
	b := c.client()
	body, err := b.Get(c.t.Context(), name, 0, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	data, err := io.ReadAll(body)
	_ = body.Close()
	if err == nil {
		data = change(data)
		_, err = b.Put(c.t.Context(), name, bytes.NewReader(data), int64(len(data)), bucket.Condition{})
	}
	if err != nil {
		c.t.Fatalf("rewrite %s: %v", name, err)
	}
}

// fsck fails the test unless all that the bucket's lists have is there and whole.
func (c *cloud) fsck() {
	c.t.Helper()
	path, err := daemonBinary()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(path, "fsck", cloudURL, "--payload", "--no-repair", "--object-endpoint", c.endpoint, "--object-region", "us-east-1")
	cmd.Env = append(daemonEnviron(), credentials()...)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Errorf("fsck of the bucket: %v\n%s", err, out)
	}
}

// filled starts a node, and has it compute and upload prompts. It returns how many records the bucket has then.
func (c *cloud) filled(t *testing.T, args []string, all ...asked) (*node, int64) {
	t.Helper()
	a := c.node(t, args...)
	a.start()
	for _, q := range all {
		e := q.engine(t, a)
		q.of(e, "computed")
		e.close()
	}
	a.sent()
	a.stop() // the next start is steward at once, and need not wait until lists are due
	a.start()
	return a, a.listed()
}

// object is the state of the node's object tier.
func (n *node) object() *daemon.ObjectStatus {
	n.t.Helper()
	return n.status().Object
}

// sent waits until all that is on the node's disk is in data objects of the bucket.
func (n *node) sent() {
	n.t.Helper()
	n.saved()
	n.wait("the uploads to end", func() bool {
		s := n.status()
		u := s.Object.Upload
		return s.Store.Records > 0 && u.Uploaded+u.Deduplicated >= uint64(s.Store.Records) && u.QueueRecords+u.Uploading+s.Object.WritingRecords == 0
	})
}

// listed waits until that is in the lists that other nodes follow, and returns how many records they have. The lease of a
// node that was killed may have to end first.
func (n *node) listed() int64 {
	n.t.Helper()
	n.sent()
	var records int64
	n.waitLong("the lists to have all", func() bool {
		s := n.status()
		records = s.Object.Records
		return records >= s.Store.Records && s.Object.ListsWaiting == 0
	})
	return records
}

// follows waits until the node offers that many records of the bucket.
func (n *node) follows(records int64) {
	n.t.Helper()
	n.wait("news of the bucket", func() bool {
		o := n.object()
		return o.Offers && o.Records >= records
	})
}

// fetched is how many records came from the bucket since the daemon's start.
func (n *node) fetched() uint64 {
	n.t.Helper()
	return n.object().Fetch.Records
}

// says waits until the log has a line that begins with a message and says what to do.
func (n *node) says(message string) {
	n.t.Helper()
	wait.For(n.t, "the log says what to do about: "+message, func() bool { return lineWith(n.log.String(), message, `remedy="`) })
}

// waitLong waits for what nodes look at once a minute.
func (n *node) waitLong(what string, cond func() bool) {
	n.t.Helper()
	const limit = 5 * time.Minute
	for end := time.Now().Add(limit); !cond(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("never: %s", what)
		}
	}
}
