package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

// Ranks is the list that a [Discovery] keeps; [route.Router] has it.
type Ranks interface {
	Add(specs ...registry.Rank) error
	// Update changes all of the ranks or none: those that share a node or bucket can change its URL only together.
	Update(specs ...registry.Rank) error
	Remove(id int32) (inFlight int, err error)
	Rank(id int32) (info route.RankInfo, ok bool)
}

// Options configure a [Discovery].
type Options struct {
	Sources []Source
	Ranks   Ranks
	// Node and NodeURL are those of ranks that have none and whose endpoint is on this machine; empty if they stay without.
	Node, NodeURL string
	// LeaveTimeout is how long the requests of a rank that leaves may take until it is removed all the same. They are not
	// broken off then, but their load does not count any more. Default 2 min.
	LeaveTimeout time.Duration
	// Resolver resolves names; nil means Go's own, with which a part of an answer is an error. Cluster is where Services are looked for.
	Resolver Resolver
	Cluster  Cluster
	// Changed, if set, is called after ranks were added or changed.
	Changed func()
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.LeaveTimeout = cmp.Or(o.LeaveTimeout, 2*time.Minute)
	if o.Resolver == nil {
		o.Resolver = &net.Resolver{PreferGo: true, StrictErrors: true}
	}
	o.Cluster.EnsureDefaults()
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	if o.LeaveTimeout < 0 {
		return errors.New("discovery: the time to leave is negative")
	}
	for i := range o.Sources {
		err := o.Sources[i].Validate()
		if err == nil && o.Sources[i].Service != "" {
			err = o.Cluster.Validate()
		}
		if err != nil {
			return fmt.Errorf("discovery[%d]: %w", i, err)
		}
	}
	return nil
}

// Stats are the figures of a [Discovery].
type Stats struct {
	// Ranks are those in the lists that the router has taken, Leaving those that are there until their requests have
	// ended, Refused those that it has not taken.
	Ranks   int `json:"ranks" metric:"discovered_ranks" help:"Ranks that discovery found and the router has taken."`
	Leaving int `json:"leaving" metric:"discovery_leaving_ranks" help:"Ranks that are found no more and wait for their requests to end."`
	Refused int `json:"refused" metric:"discovery_refused_ranks" help:"Ranks that were found and do not fit the others; the log says why."`
	// Sources is how many there are, Failing how many could not be read the last time, Down how many of them could not be read
	// three times in a row or for a minute: one late answer of a name server is nothing that needs attention.
	Sources int `json:"sources" metric:"discovery_sources" help:"Sources that ranks are looked for in."`
	Failing int `json:"failing" metric:"discovery_failing_sources" help:"Sources that could not be read when they were last tried; their last lists hold."`
	Down    int `json:"down" metric:"discovery_down_sources" help:"Sources that could not be read three times in a row or for a minute. /healthz is bad then."`
	// Errors counts the tries that failed.
	Errors uint64 `json:"errors" metric:"discovery_errors_total" help:"Failed tries to read a source of ranks."`
	// Why are the errors of the sources that fail.
	Why []string `json:"why"`
}

// Discovery keeps a router's ranks those of its sources.
type Discovery struct {
	opts    Options
	reports chan report

	// The rest is used by Run alone.
	sources []state
	members map[string]*member
	refused map[string]string // why, by key
	nextID  int32

	mu    sync.Mutex
	stats Stats
}

// report is what a source says.
type report struct {
	source int
	// ranks are all that there are, if listed.
	ranks  []registry.Rank
	listed bool
	err    error
}

// state is what is known of a source.
type state struct {
	wanted map[string]registry.Rank
	err    string // of the last try, empty if it worked
	// logged is when an error of the source was logged last.
	logged time.Time
	// failures is how many tries failed in a row, since is when the first did.
	failures int
	since    time.Time
}

const (
	// downFailures and downAfter are how many tries in a row have to fail, or for how long, until a source is down.
	downFailures = 3
	downAfter    = time.Minute
)

// down says whether a source has failed again and again.
func (s *state) down(now time.Time) bool {
	return s.failures >= downFailures || s.failures > 0 && now.Sub(s.since) >= downAfter
}

// logPause is the least time between two log lines about a source that goes on failing. Errors of the network differ each
// time, by a port.
const logPause = time.Minute

// sink takes the reports of one source.
type sink struct {
	ctx    context.Context
	to     chan<- report
	source int
}

func (s sink) send(r report) {
	r.source = s.source
	select {
	case s.to <- r:
	case <-s.ctx.Done():
	}
}

// found says which ranks there are; err is about others that were left out.
func (s sink) found(ranks []registry.Rank, err error) {
	s.send(report{ranks: ranks, listed: true, err: err})
}

// failed says that the list is not known, works that it is what it was.
func (s sink) failed(err error) { s.send(report{err: err}) }
func (s sink) works()           { s.send(report{}) }

// firstID is the id of the first rank that is found: below are the ids of ranks in settings.
const firstID = 1000

// New makes a Discovery for the sources.
func New(o Options) (*Discovery, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Discovery{
		opts: o, reports: make(chan report), sources: make([]state, len(o.Sources)), members: make(map[string]*member),
		refused: make(map[string]string), nextID: firstID, stats: Stats{Sources: len(o.Sources), Why: []string{}},
	}, nil
}

// Stats returns the present figures.
func (d *Discovery) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

const (
	// tick is how often ranks that leave or were refused are looked at, and ticks how many of them pass until all ranks are:
	// somebody may have removed one.
	tick  = time.Second
	ticks = 10
)

// Run follows the sources until ctx ends. The ranks stay then.
func (d *Discovery) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range d.opts.Sources {
		running.Go(func() { d.watch(ctx, i) })
	}
	again := time.NewTicker(tick)
	defer again.Stop()
	for passed := 0; ; {
		due := false
		select {
		case <-ctx.Done():
			return
		case r := <-d.reports:
			d.take(r)
			due = r.listed
		case <-again.C:
			passed++
			due = len(d.refused) > 0 || d.Stats().Leaving > 0 || passed%ticks == 0
		}
		if due {
			d.reconcile(time.Now())
		} else {
			d.count()
		}
	}
}

// watch follows one source until ctx ends.
func (d *Discovery) watch(ctx context.Context, i int) {
	s, to := &d.opts.Sources[i], sink{ctx: ctx, to: d.reports, source: i}
	switch {
	case s.File != "":
		watchFile(ctx, s, to)
	case s.DNS != "":
		watchDNS(ctx, s, d.opts.Resolver, to)
	default:
		watchService(ctx, s, &d.opts.Cluster, to)
	}
}

// take notes what a source says.
func (d *Discovery) take(r report) {
	s, name := &d.sources[r.source], d.opts.Sources[r.source].String()
	text := ""
	if r.err != nil {
		text = r.err.Error()
		d.mu.Lock()
		d.stats.Errors++
		d.mu.Unlock()
	}
	switch {
	case text != "" && (s.err == "" || text != s.err && time.Since(s.logged) >= logPause):
		s.logged = time.Now()
		d.opts.Logger.Warn("ranks cannot be looked for; those that were found stay", "source", name, "error", r.err, "ranks", len(s.wanted),
			"remedy", "see docs/router-ranks.md, Discovery; it is tried again and again")
	case text == "" && s.err != "":
		d.opts.Logger.Info("ranks can be looked for again", "source", name)
	}
	s.err = text
	switch {
	case text == "":
		s.failures = 0
	case s.failures == 0:
		s.failures, s.since = 1, time.Now()
	default:
		s.failures++
	}
	if !r.listed {
		return
	}
	s.wanted = make(map[string]registry.Rank, len(r.ranks))
	// One rank of a node gives its URL. Each gets it, so that all of them change with it.
	nodes, buckets := make(map[string]string), make(map[string]string)
	for i := range r.ranks {
		rank := &r.ranks[i]
		nodes[rank.Node], buckets[rank.Bucket] = cmp.Or(nodes[rank.Node], rank.NodeURL), cmp.Or(buckets[rank.Bucket], rank.BucketURL)
	}
	var own machine
	for _, rank := range r.ranks {
		d.opts.localize(&rank, &own)
		rank.NodeURL, rank.BucketURL = cmp.Or(rank.NodeURL, nodes[rank.Node]), cmp.Or(rank.BucketURL, buckets[rank.Bucket])
		s.wanted[strconv.Itoa(r.source)+" "+keyOf(&rank)] = rank
	}
}
