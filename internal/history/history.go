// Package history keeps the last hour of a process's figures, for those who look at it without a monitoring system.
package history

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/kvconn/kvconn/internal/httpserve"
)

const (
	// Interval is the time between two looks. It is a pixel or two of a chart.
	Interval = 10 * time.Second
	// points are an hour of looks, and one before them, since counters are read as differences.
	points = int(time.Hour/Interval) + 1
)

// Recorder looks at figures again and again, and keeps the last hour. It is an [http.Handler] that answers with them as JSON: see
// [Answer]. Its methods may be called from any goroutine.
type Recorder struct {
	names []string
	read  func(values []float64)

	mu    sync.Mutex
	at    [points]time.Time
	value [][points]float64
	// next is where the next look goes, n how many there are.
	next, n int
	scratch []float64
}

// New returns a recorder of figures. read fills in one value for each name, in their order. Names of counters end in _total: they
// grow until the process ends.
func New(read func(values []float64), names ...string) *Recorder {
	return &Recorder{names: names, read: read, value: make([][points]float64, len(names)), scratch: make([]float64, len(names))}
}

// Run looks now and at every [Interval] until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		r.look(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *Recorder) look(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read(r.scratch)
	r.at[r.next] = now
	for i, v := range r.scratch {
		r.value[i][r.next] = v
	}
	r.next = (r.next + 1) % points
	r.n = min(r.n+1, points)
}

// Answer is the JSON of the last hour.
type Answer struct {
	// IntervalS is the time between two looks, in seconds, if the process was not kept from looking.
	IntervalS float64 `json:"interval_s"`
	// AgesS says how long ago each look was, in seconds, the oldest first.
	AgesS []float64 `json:"ages_s"`
	// Series has the values of each figure at these looks. Those whose names end in _total are counters.
	Series map[string][]float64 `json:"series"`
}

// Answer returns the last hour as seen now.
func (r *Recorder) Answer(now time.Time) Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := Answer{IntervalS: Interval.Seconds(), AgesS: make([]float64, r.n), Series: make(map[string][]float64, len(r.names))}
	first := (r.next - r.n + points) % points
	for i := range a.AgesS {
		a.AgesS[i] = now.Sub(r.at[(first+i)%points]).Seconds()
	}
	for s, name := range r.names {
		values := make([]float64, r.n)
		for i := range values {
			values[i] = r.value[s][(first+i)%points]
		}
		a.Series[name] = values
	}
	return a
}

// ServeHTTP implements [http.Handler].
func (r *Recorder) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	httpserve.WriteJSON(w, http.StatusOK, r.Answer(time.Now()), "")
}
