package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/kvconn/kvconn/internal/daemon"
)

// NodeRow is one turn of a conversation: computed on node A, and served from the cache by nodes that did not
// compute it.
type NodeRow struct {
	Name         string `json:"name"`
	PromptTokens int    `json:"prompt_tokens"`
	// TTFTColdS is node A's time to the first token, in seconds.
	TTFTColdS float64 `json:"ttft_cold_s"`
	// Bucket is node B, which had nothing but the bucket. Outage is node B again while the bucket is down.
	// Wiped is node A after it lost its disk.
	Bucket NodeAnswer `json:"bucket"`
	Outage NodeAnswer `json:"outage"`
	Wiped  NodeAnswer `json:"wiped"`
}

// NodeAnswer is an answer with the cache.
type NodeAnswer struct {
	// CachedTokens were not computed.
	CachedTokens int     `json:"cached_tokens"`
	TTFTS        float64 `json:"ttft_s"`
	Identical    bool    `json:"identical"`
}

// NodesReport is the result of the demo with nodes that share a bucket.
type NodesReport struct {
	Rows []NodeRow `json:"rows"`
	// BucketRecords are the records that node A put into the bucket, BucketHits and WipedHits those that the
	// nodes loaded from there.
	BucketRecords int64  `json:"bucket_records"`
	BucketHits    uint64 `json:"bucket_hits"`
	WipedHits     uint64 `json:"wiped_hits"`
}

// OK says that every answer was identical, and came from the cache that it was to come from.
func (r *NodesReport) OK() bool {
	good := func(a NodeAnswer) bool { return a.Identical && a.CachedTokens > 0 }
	different := slices.ContainsFunc(r.Rows, func(row NodeRow) bool { return !good(row.Bucket) || !good(row.Outage) || !good(row.Wiped) })
	return !different && len(r.Rows) > 0 && r.BucketHits > 0 && r.WipedHits > 0
}

// nodes is a demo of two nodes.
type nodes struct {
	bucket *bucketServer
	a, b   *runner
	report NodesReport
}

// shareTimeout bounds what waits until a node has heard of another's records: seconds, on a machine that is
// not busy.
const shareTimeout = 2 * time.Minute

// RunNodes runs the demo with two nodes and a bucket of its own. Keep does not apply.
func RunNodes(ctx context.Context, o Options) (_ *NodesReport, err error) {
	work, err := os.MkdirTemp("", "kvconn-demo-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	bucket, err := startBucket()
	if err != nil {
		return nil, err
	}
	defer bucket.close()
	n := &nodes{bucket: bucket}
	for name, node := range map[string]**runner{"a": &n.a, "b": &n.b} {
		dir := filepath.Join(work, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make a temporary directory: %w", err)
		}
		*node = &runner{
			o: &o, dir: filepath.Join(dir, "store"), socket: filepath.Join(dir, "kvconnd.sock"),
			serve: bucket.flags(), environ: bucket.environ(),
		}
	}
	for _, part := range []struct {
		what string
		node *runner
		do   func(ctx context.Context, d *daemonProcess, e *engineProcess) error
	}{
		{"1/4 node A computes, and uploads what it saves", n.a, n.compute},
		{"2/4 node B, which has an empty disk: node A is off, the bucket is there", n.b, n.fromBucket},
		{"3/4 node B again: the bucket is down", n.b, n.inOutage},
		{"4/4 node A again: the bucket is back, the disk was wiped", n.a, n.afterWipe},
	} {
		o.say("%s", part.what)
		if err := part.node.withProcesses(ctx, false, part.do); ctx.Err() != nil {
			return nil, errors.New("interrupted") // the children only repeat it
		} else if err != nil {
			return nil, err
		}
	}
	return &n.report, nil
}

// compute has node A compute and save everything, and waits until it is in the bucket.
func (n *nodes) compute(ctx context.Context, d *daemonProcess, e *engineProcess) error {
	if err := n.a.cold(ctx, d, e); err != nil {
		return err
	}
	for _, t := range n.a.turns {
		n.report.Rows = append(n.report.Rows, NodeRow{Name: t.name, PromptTokens: len(t.prompt), TTFTColdS: t.ttftS})
	}
	n.a.say("    waiting until it is in the bucket")
	return n.await(ctx, d, "the uploads end", func(s *daemon.Status) bool {
		n.report.BucketRecords = recordsOf(s, "object")
		return s.Store.Records > 0 && n.report.BucketRecords >= s.Store.Records
	})
}

// fromBucket has node B answer with what is in the bucket.
func (n *nodes) fromBucket(ctx context.Context, d *daemonProcess, e *engineProcess) error {
	if err := n.awaitBucket(ctx, d); err != nil {
		return err
	}
	if err := n.answer(e, func(r *NodeRow) *NodeAnswer { return &r.Bucket }); err != nil {
		return err
	}
	s, err := daemon.FetchStatus(ctx, d.http)
	if err != nil {
		return err
	}
	n.report.BucketHits = hitsOf(s, "object")
	n.bucket.down.Store(true)
	return nil
}

// inOutage has node B answer without the bucket.
func (n *nodes) inOutage(_ context.Context, _ *daemonProcess, e *engineProcess) error {
	err := n.answer(e, func(r *NodeRow) *NodeAnswer { return &r.Outage })
	n.bucket.down.Store(false)
	return errors.Join(err, os.RemoveAll(n.a.dir))
}

// afterWipe has node A answer with an empty disk.
func (n *nodes) afterWipe(ctx context.Context, d *daemonProcess, e *engineProcess) error {
	if err := n.awaitBucket(ctx, d); err != nil {
		return err
	}
	if err := n.answer(e, func(r *NodeRow) *NodeAnswer { return &r.Wiped }); err != nil {
		return err
	}
	s, err := daemon.FetchStatus(ctx, d.http)
	if err == nil {
		n.report.WipedHits = hitsOf(s, "object")
	}
	return err
}

// awaitBucket waits until a node knows what is in the bucket.
func (n *nodes) awaitBucket(ctx context.Context, d *daemonProcess) error {
	return n.await(ctx, d, "the node knows what is in the bucket", func(s *daemon.Status) bool {
		return recordsOf(s, "object") >= n.report.BucketRecords
	})
}

// await waits until a daemon's status is as wanted.
func (n *nodes) await(ctx context.Context, d *daemonProcess, what string, done func(*daemon.Status) bool) error {
	const every = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, shareTimeout)
	defer cancel()
	for {
		s, err := daemon.FetchStatus(ctx, d.http)
		if err == nil && done(s) {
			return nil
		}
		select {
		case <-d.done:
			return d.failure(errors.Join(fmt.Errorf("it ended while it was waited for until %s", what), d.err))
		case <-ctx.Done():
			return d.failure(errors.Join(fmt.Errorf("gave up waiting until %s", what), err))
		case <-time.After(every):
		}
	}
}

// answer serves all turns from the cache.
func (n *nodes) answer(e *engineProcess, to func(*NodeRow) *NodeAnswer) error {
	for i, t := range n.a.turns {
		got, err := e.complete(prompt{ID: t.name, Tokens: t.prompt, MaxTokens: answerTokens})
		if err != nil {
			return err
		}
		*to(&n.report.Rows[i]) = NodeAnswer{CachedTokens: got.DiskTokens, TTFTS: got.TTFTS, Identical: slices.Equal(got.Tokens, t.answer)}
		n.a.say("    %-16s %5d tokens, first token after %.3f s", t.name, len(t.prompt), got.TTFTS)
	}
	return nil
}

func tierOf(s *daemon.Status, name string) daemon.TierStatus {
	for _, t := range s.Tiers {
		if t.Tier == name {
			return t
		}
	}
	return daemon.TierStatus{}
}

func recordsOf(s *daemon.Status, tier string) int64 { return tierOf(s, tier).Records }
func hitsOf(s *daemon.Status, tier string) uint64   { return tierOf(s, tier).Hits }

// Print writes the report for people.
func (r *NodesReport) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "conversation\tprompt tokens\tcomputed on A\tB, from the bucket\tB, bucket down\tA, disk wiped\tidentical\t")
	for i := range r.Rows {
		row := &r.Rows[i]
		fmt.Fprintf(w, "%s\t%d\t%.3f s", row.Name, row.PromptTokens, row.TTFTColdS)
		identical := true
		for _, a := range []NodeAnswer{row.Bucket, row.Outage, row.Wiped} {
			fmt.Fprintf(w, "\t%.3f s, %d tokens", a.TTFTS, a.CachedTokens)
			identical = identical && a.Identical
		}
		fmt.Fprintf(w, "\t%s\t\n", yesNo(identical))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nThe columns are times to the first token, with the tokens that came from the cache. Node A put %d records into the bucket; node B loaded %d from there, and node A %d after its disk was wiped.\n",
		r.BucketRecords, r.BucketHits, r.WipedHits)
	return err
}
