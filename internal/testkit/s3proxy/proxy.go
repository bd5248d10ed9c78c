package s3proxy

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// Proxy passes requests on and acts on them as its script says. It is safe for concurrent use.
type Proxy struct {
	next http.Handler

	mu       sync.Mutex
	began    time.Time
	stopped  chan struct{} // closed when the script ends: so do its waits
	clauses  []*state
	injected int64
	draws    *rand.Rand
}

// New makes a proxy before a handler. It has no script yet.
func New(next http.Handler) *Proxy {
	return &Proxy{next: next, stopped: make(chan struct{})}
}

// To is a handler that passes requests on to a server, with the host that the client named: it is part
// of what the client signed.
func To(server *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(server)
			r.Out.Host = r.In.Host
		},
		FlushInterval: -1,
		// The transport changes nothing in what it passes on.
		Transport:    &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64},
		ErrorLog:     slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
}

// Play ends the present script and begins another, whose counts start at zero.
func (p *Proxy) Play(script ...Clause) {
	p.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began, p.stopped, p.draws = time.Now(), make(chan struct{}), rand.New(rand.NewPCG(uint64(len(script)), 1))
	for _, c := range script {
		p.clauses = append(p.clauses, &state{Clause: c, random: rand.New(rand.NewPCG(c.Seed, 2))})
	}
}

// Stop ends the script, and the waits of requests under way.
func (p *Proxy) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clauses != nil {
		p.clauses = nil
		close(p.stopped)
	}
}

// Injected is how many requests scripts acted on.
func (p *Proxy) Injected() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.injected
}

// action is all that is done to one request.
type action struct {
	Effect
	stopped <-chan struct{}
	draw    *rand.Rand
}

// decide is what the script has for a request. Delays add up; of several answers the first is given.
func (p *Proxy) decide(on Kind, name string) action {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, acted := action{stopped: p.stopped}, false
	now := time.Now()
	for _, c := range p.clauses {
		if !c.fires(on, name, p.began, now) {
			continue
		}
		acted = true
		e := c.Do
		if e.Rate > 0 {
			e.Status, e.Code = http.StatusServiceUnavailable, "SlowDown"
		}
		if a.Status == 0 {
			a.Status, a.Code = e.Status, e.Code
		}
		a.Delay += e.Delay
		a.Stall += e.Stall
		a.Page = max(a.Page, e.Page)
		a.Cut = max(a.Cut, e.Cut)
		a.Flip += e.Flip
		a.Skew += e.Skew
		a.Reset, a.Lost, a.Whole = a.Reset || e.Reset, a.Lost || e.Lost, a.Whole || e.Whole
	}
	if acted {
		p.injected++
		a.draw = rand.New(rand.NewPCG(p.draws.Uint64(), 3))
	}
	return a
}

// wait waits, at most until the script ends. If the client leaves it does not return.
func (a *action) wait(r *http.Request, d time.Duration) {
	if d == 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.stopped:
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}

// ServeHTTP passes on one request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	on, name := subject(r)
	a := p.decide(on, name)
	if a.draw == nil {
		p.next.ServeHTTP(w, r)
		return
	}
	a.wait(r, a.Delay)
	out := &answer{ResponseWriter: w, r: r, action: &a}
	switch {
	case a.Reset:
		reset(w)
	case a.Status != 0:
		a.refuse(out, r)
		return
	case a.Page != 0:
		out.Header().Set("Content-Type", "text/html")
		out.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
		out.WriteHeader(a.Page)
		_, _ = io.WriteString(out, "<html><body>default backend</body></html>")
		return
	}
	if a.Whole {
		r.Header.Del("Range")
	}
	if a.Flip > 0 && on == Put {
		r.Body = &flipped{ReadCloser: r.Body, flips: a.flips(r.ContentLength)}
		a.Flip = 0
	}
	if a.Lost {
		p.next.ServeHTTP(&nowhere{header: make(http.Header)}, r)
		reset(w)
	}
	p.next.ServeHTTP(out, r)
	out.WriteHeader(http.StatusOK) // if the handler has left that to its caller
}

// refuse answers with an error of S3.
func (a *action) refuse(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/xml")
	h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	h.Set("X-Amz-Request-Id", "s3proxy")
	w.WriteHeader(a.Status)
	if r.Method != http.MethodHead {
		_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>a fault of the script</Message><RequestId>s3proxy</RequestId></Error>", a.Code)
	}
}

// reset closes the client's connection at once, and does not return.
func reset(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, not an end
		}
		_ = conn.Close()
	}
	panic(http.ErrAbortHandler)
}

// flips draws the places of the bits to flip in a body, by byte.
func (a *action) flips(length int64) map[int64]byte {
	places := make(map[int64]byte)
	for range a.Flip {
		if length > 0 {
			places[a.draw.Int64N(length)] ^= 1 << a.draw.IntN(8)
		}
	}
	return places
}

// flip flips bits in b, which begins at an offset of the body.
func flip(b []byte, at int64, flips map[int64]byte) {
	for place, bits := range flips {
		if at <= place && place < at+int64(len(b)) {
			b[place-at] ^= bits
		}
	}
}

// flipped is a request's body with flipped bits.
type flipped struct {
	io.ReadCloser
	flips map[int64]byte
	at    int64
}

func (f *flipped) Read(b []byte) (int, error) {
	n, err := f.ReadCloser.Read(b)
	flip(b[:n], f.at, f.flips)
	f.at += int64(n)
	return n, err
}

// nowhere takes an answer that is lost.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header         { return n.header }
func (n *nowhere) WriteHeader(int)             {}
func (n *nowhere) Write(b []byte) (int, error) { return len(b), nil }
