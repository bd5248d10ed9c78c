package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/freeport"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/policy"
)

// addressedNode is a node whose address stays the same, with a bucket that others share.
func (c *cloud) addressedNode(t *testing.T, endpoint string) (n *node, url string) {
	t.Helper()
	address := freeport.Address(t)
	n = c.nodeAt(t, endpoint, "--http", address, "--object-poll-max", "1s")
	return n, "http://" + address
}

// routerProcess is `kvconnd router`.
type routerProcess struct {
	t   *testing.T
	url string
	log testlog.Text
}

// startRouter runs a router until the test ends, and waits until it serves.
func startRouter(t *testing.T, file string) *routerProcess {
	t.Helper()
	path, err := daemonBinary()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "router.yaml")
	if err := os.WriteFile(config, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &routerProcess{t: t}
	cmd := exec.Command(path, "router", "--config", config, "--http", "127.0.0.1:0", "--health-interval", "0s")
	cmd.Env, cmd.Stderr, cmd.SysProcAttr = daemonEnviron(), &r.log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the router's log:\n%s", &r.log)
		}
	})
	address := regexp.MustCompile(`msg="the router listens".* http=(\S+)`)
	r.wait("the router serves", func() bool {
		m := address.FindStringSubmatch(r.log.String())
		if m != nil {
			r.url = "http://" + m[1]
		}
		return m != nil
	})
	return r
}

func (r *routerProcess) wait(what string, cond func() bool) {
	r.t.Helper()
	(&node{t: r.t}).wait(what, cond)
}

// ask posts a question and reads the answer.
func (r *routerProcess) ask(path string, question map[string]any, answer any) {
	r.t.Helper()
	body, err := json.Marshal(question)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.Post(r.url+path, "application/json", bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("POST %s: %s, %v", path, resp.Status, err)
	}
}

// prefix is what a rank has of a prompt, by the router.
func (r *routerProcess) prefix(rank int, prompt []uint32) policy.Match {
	r.t.Helper()
	var answer struct {
		Ranks []struct {
			Rank   int          `json:"rank"`
			Prefix policy.Match `json:"prefix"`
		} `json:"ranks"`
	}
	r.ask("/v1/prefix", map[string]any{"model": "kvconn-tiny", "token_ids": prompt}, &answer)
	for _, a := range answer.Ranks {
		if a.Rank == rank {
			return a.Prefix
		}
	}
	r.t.Fatalf("no rank %d in %+v", rank, answer)
	return policy.Match{}
}

// follows is how the router follows the bucket.
func (r *routerProcess) follows() feed.ResidencyStats {
	r.t.Helper()
	var answer struct {
		Ranks []struct {
			ObjectFeed *feed.ResidencyStats `json:"object_feed"`
		} `json:"ranks"`
	}
	text := get(r.t, r.url+"/v1/ranks")
	if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Ranks) == 0 || answer.Ranks[0].ObjectFeed == nil {
		r.t.Fatalf("no feed of the bucket in %s: %v", text, err)
	}
	return *answer.Ranks[0].ObjectFeed
}

// What node A saved counts for the ranks of node B once it is in the bucket, before B has loaded any of it. The router
// follows the bucket through B alone, which knows A's namespace by the bucket.
func TestRouterCountsWhatIsInTheBucketForAllRanks(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	proxy, endpoint := c.proxy(t)
	a, aURL := c.addressedNode(t, endpoint)
	b, bURL := c.addressedNode(t, endpoint)
	a.start()
	b.start()
	r := startRouter(t, fmt.Sprintf(`ranks:
  - {model: kvconn-tiny, endpoint: "http://127.0.0.1:1", block_size: 8, node: a, node_url: %q, bucket: shared, bucket_url: %q, speeds: {prefill_tokens_per_s: 10}}
  - {model: kvconn-tiny, endpoint: "http://127.0.0.1:2", block_size: 8, node: b, node_url: %q, bucket: shared, speeds: {prefill_tokens_per_s: 10}}
`, aURL, bURL, bURL))
	const onA, onB = 0, 1
	full := func(prompt []uint32) int32 { return int32(len(prompt) / 8 * 8) }
	inBucket := func(what string, prompt []uint32) {
		t.Helper()
		r.wait(what, func() bool { return r.prefix(onB, prompt).Object == full(prompt) })
		if m := r.prefix(onB, prompt); m.Disk != 0 || m.LoadObject != full(prompt) {
			t.Errorf("%s: node B has %+v", what, m)
		}
	}
	prompt := func(seed int) []uint32 { return prompts(seed, 1)[0] }
	e := newInstance(t, a, nil)
	first, routed, late := prompt(150), prompt(151), prompt(152)
	e.run("first", [][]uint32{first, routed})
	a.saved()
	inBucket("what A saved counts for B", first)
	if m := r.prefix(onA, first); m.Disk != full(first) || m.LoadObject != 0 {
		t.Errorf("node A, which has it on disk, has %+v", m)
	}
	inBucket("all that A saved", routed)
	var d policy.Decision
	r.ask("/v1/route", map[string]any{"model": "kvconn-tiny", "token_ids": routed, "pin": map[string]any{"rank": onB, "strict": true}}, &d)
	if d.LoadObject == 0 || d.LoadDisk != 0 {
		t.Errorf("the rank on B is to load %d tokens from the bucket and %d from disk", d.LoadObject, d.LoadDisk)
	}
	if !thorough() {
		return
	}

	// While the bucket does not work the router keeps what it knows, and then hears what it has missed.
	before := r.follows()
	proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Page: http.StatusBadGateway}})
	r.wait("the stream of the bucket ends", func() bool { st := r.follows(); return !st.Connected && strings.Contains(st.Error, "503") })
	if m := r.prefix(onB, first); m.Object != full(first) {
		t.Errorf("at once after the bucket stopped to work, node B has %+v", m)
	}
	e.run("late", [][]uint32{late})
	proxy.Stop()
	inBucket("what A saved meanwhile", late)
	if st := r.follows(); st.Resumed <= before.Resumed || st.Snapshots != before.Snapshots || st.Gaps+st.Malformed != 0 {
		t.Errorf("%+v, before %+v", st, before)
	}

	// A daemon that starts again has another epoch: the stream begins again.
	b.stop()
	b.start()
	r.wait("the stream of the daemon that started again", func() bool {
		st := r.follows()
		return st.State == feed.StateSynced && st.Epoch != before.Epoch
	})
	inBucket("the bucket after a restart of B", first)

	// What B loads is on its disk.
	want := reference(t, nil, [][]uint32{first})
	other := newInstance(t, b, nil)
	got := other.run("on B", [][]uint32{first})
	same(t, "on B", got, want)
	if cached(got) == 0 {
		t.Error("B loads nothing from the bucket")
	}
	r.wait("what B has loaded is on its disk", func() bool { m := r.prefix(onB, first); return m.Disk >= int32(whole(first, 8)) })

	proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Page: http.StatusBadGateway}})
	r.wait("a bucket that stays away is forgotten", func() bool { return r.prefix(onB, late).Object == 0 })
	proxy.Stop()
	inBucket("a bucket that is back", late)
}
