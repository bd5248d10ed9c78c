package warm

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/prompt"
	"github.com/kvconn/kvconn/store"
)

// missing reports whether an error says that a record is not there.
func missing(err error) bool { return errors.Is(err, store.ErrGone) }

// Request is what POST /v1/warm asks for: what was used most recently of a model or a namespace, or, with tokens, a prompt of a model.
type Request struct {
	prompt.Prompt
	// Namespace is a digest, instead of a model.
	Namespace string `json:"namespace,omitempty"`
}

func (q *Request) check() error {
	switch {
	case q.Namespace == "":
		return q.Validate()
	case q.Model != "" || len(q.Tokens) > 0:
		return errors.New("give a model, or a namespace as a whole")
	}
	return nil
}

// manifests are those of the namespaces to warm.
func (q *Request) manifests(all []store.NamespaceInfo, newest func(model string) *connector.Manifest) []*connector.Manifest {
	if q.Namespace != "" {
		for _, info := range all {
			if m, err := connector.ParseManifest(info.Manifest); err == nil && info.Digest.String() == q.Namespace {
				return []*connector.Manifest{m}
			}
		}
		return nil
	}
	list := prompt.Manifests(q.Model, all)
	if m := newest(q.Model); m != nil && len(q.Tokens) > 0 && !has(list, m) {
		list = append(list, m)
	}
	return list
}

// Progress is a line of the answer.
type Progress struct {
	// Namespace is the digest of the one that is being loaded. The last line has none, and the sums over all.
	Namespace string `json:"namespace"`
	Counts
	// Done says that this is the last line, Error why it has ended before its end, if it has.
	Done  bool   `json:"done"`
	Error string `json:"error"`
}

const (
	// interval is how often progress is told, writeTimeout bounds the writing of a line.
	interval     = 500 * time.Millisecond
	writeTimeout = 30 * time.Second
)

// Handler serves warmings, one at a time. namespaces lists those of the disk, newest is the manifest of a model's newest engine, nil if none is
// connected: the disk may not know it yet.
func Handler(w *Warmer, namespaces func() []store.NamespaceInfo, newest func(model string) *connector.Manifest) http.Handler {
	turn := make(chan struct{}, 1)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		q := new(Request)
		err := prompt.Decode(rw, r, "model and tokens", q)
		if err == nil {
			err = q.check()
		}
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		default:
			http.Error(rw, "another warming is under way", http.StatusConflict)
			return
		}
		list := q.manifests(namespaces(), newest)
		if len(list) == 0 {
			http.Error(rw, "no record and no engine is of that model or namespace", http.StatusNotFound)
			return
		}
		rw.Header().Set("Content-Type", "application/x-ndjson")
		a := &answer{w: rw, control: http.NewResponseController(rw)}
		err = w.all(r, q, list, a)
		w.Logger.Info("records were loaded into host memory on request", "loaded", a.sum.Loaded, "bytes", a.sum.Bytes, "promoted", a.sum.Promoted, "failed", a.sum.Failed, "err", err)
		a.end(err)
	})
}

func has(list []*connector.Manifest, m *connector.Manifest) bool {
	for _, o := range list {
		if o.Digest() == m.Digest() {
			return true
		}
	}
	return false
}

// all warms one namespace after the other.
func (w *Warmer) all(r *http.Request, q *Request, list []*connector.Manifest, a *answer) error {
	room := w.Room()
	for _, m := range list {
		a.namespace = m.Digest().String()
		var c Counts
		var err error
		switch {
		case len(q.Tokens) == 0:
			c, err = w.Namespace(r.Context(), m.Digest(), room, a.tell)
		case m.KeyScheme != connector.KeySchemeEngine:
			c, err = w.Prompt(r.Context(), m, &q.Prompt, room, a.tell)
		}
		a.add(c)
		room -= c.Bytes
		if err != nil {
			return err
		}
	}
	return nil
}

// answer is the stream of progress.
type answer struct {
	w         http.ResponseWriter
	control   *http.ResponseController
	namespace string
	last      time.Time
	sum       Counts
}

func (a *answer) tell(c Counts) {
	if now := time.Now(); now.Sub(a.last) >= interval {
		a.last = now
		a.write(&Progress{Namespace: a.namespace, Counts: c})
	}
}

func (a *answer) add(c Counts) {
	s := &a.sum
	s.Records, s.Loaded, s.Already, s.Missing = s.Records+c.Records, s.Loaded+c.Loaded, s.Already+c.Already, s.Missing+c.Missing
	s.Failed, s.Bytes, s.Promoted, s.Truncated = s.Failed+c.Failed, s.Bytes+c.Bytes, s.Promoted+c.Promoted, s.Truncated || c.Truncated
}

func (a *answer) end(err error) {
	p := &Progress{Counts: a.sum, Done: true}
	if err != nil {
		p.Error = err.Error()
	}
	a.write(p)
}

// write writes a line. A client that has gone ends the request's context.
func (a *answer) write(p *Progress) {
	_ = a.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	_ = json.NewEncoder(a.w).Encode(p)
	_ = a.control.Flush()
}
