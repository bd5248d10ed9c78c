package maintain

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/store/object/fsck"
	"github.com/kvconn/kvconn/store/object/steward"
)

// FsckOptions say what [Fsck] does.
type FsckOptions struct {
	// Payload also reads and verifies every record.
	Payload bool
	// NoRepair changes nothing in the bucket.
	NoRepair bool
	// Progress, if not nil, is called from time to time with the objects checked.
	Progress func(done, total int64)
}

// FsckReport says what [Fsck] found and did.
type FsckReport struct {
	// Bucket is its URL.
	Bucket string `json:"bucket"`
	fsck.Report
	// Steward is the node that carries the repairs out, where one holds the lease. Otherwise they are done.
	Steward string `json:"steward,omitempty"`
}

// Fsck checks a bucket, beside the nodes that use it: see [fsck.Check]. Its repairs go into the log, by the node that
// is steward within seconds, or by this process if there is none. No object is deleted.
func Fsck(ctx context.Context, o Options, f FsckOptions) (r FsckReport, err error) {
	n, err := open(ctx, o, !f.NoRepair)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	r.Bucket = n.bucket.String()
	check := fsck.Options{
		Client: n.bucket, Verifier: n.verifier, Catalog: n.catalog, CatchUp: n.catchUp, Payload: f.Payload, Progress: f.Progress,
	}
	if !f.NoRepair {
		check.Outbox, check.RemakeHead = n.outbox, n.remakeHead
	}
	if r.Report, err = fsck.Check(ctx, check); err != nil {
		return r, explain(n.bucket, err)
	}
	sent := n.outbox.Stats()
	if sent.Lists > 0 {
		r.Steward, err = n.carryOut(ctx)
	}
	if sent.Dropped > 0 {
		r.Unread++
		r.Failed = append(r.Failed, fmt.Sprintf("%d repairs did not fit into memory: check again", sent.Dropped))
	}
	if err != nil {
		r.Unread++
		r.Failed = append(r.Failed, fmt.Sprintf("the repairs wait in the bucket until a node is steward: %v", err))
	}
	return r, context.Cause(ctx)
}

func (n *node) remakeHead(ctx context.Context) error {
	return n.steward.Once(ctx, func(ctx context.Context, t steward.Term) error { return t.RemakeHead(ctx) })
}

// carryOut merges the list of repairs. It returns the name of the node that does so in place of this process.
func (n *node) carryOut(ctx context.Context) (string, error) {
	var held *steward.HeldError
	err := n.steward.Once(ctx, nil)
	if errors.As(err, &held) {
		if held.Node == "" {
			return "another node", nil
		}
		return held.Node, nil
	}
	return "", err
}
