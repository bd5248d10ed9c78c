package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/route"
)

// Causes for which the request to an engine is given up.
var (
	errFirstByte = errors.New("no answer in time")
	errIdle      = errors.New("the answer does not go on")
)

// attempt is a request on its way to one rank after another.
type attempt struct {
	proxy    *Proxy
	w        http.ResponseWriter
	r        *http.Request
	in       *incoming
	span     *spans.Route // nil if there is none
	began    time.Time
	decision route.Decision

	// last is why the last rank failed, refusal its answer if it refused.
	last    error
	refusal *refusal
}

// refusal is an answer that says that the rank cannot serve the request now.
type refusal struct {
	status   int
	header   http.Header
	body     []byte
	decision route.Decision
}

// maxRefusal bounds what is kept of one, refusalTimeout the time in which it is read.
const (
	maxRefusal     = 64 << 10
	refusalTimeout = 2 * time.Second
)

// refuses says whether a status means that another rank may do better.
func refuses(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// run sends the request to the rank of the decision. It reports whether the request is done: the client has an
// answer, or has gone. Else another rank may be tried.
func (a *attempt) run() (done bool) {
	d, o := &a.decision, &a.proxy.opts
	defer o.Router.Finish(d.Handle)
	a.span.Placed(spans.Placement{
		Rank: d.Rank, Reason: string(d.Reason), PromptTokens: d.PromptTokens,
		GPUTokens: d.UseTokens - d.LoadDisk - d.LoadObject, DiskTokens: d.LoadDisk, ObjectTokens: d.LoadObject,
	})
	ctx, cancel := context.WithCancelCause(a.r.Context())
	defer cancel(nil)
	timer := time.AfterFunc(o.FirstByteTimeout, func() { cancel(errFirstByte) })
	defer timer.Stop()
	resp, err := a.send(ctx)
	if err != nil {
		return a.failed(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if refuses(resp.StatusCode) {
		timer.Reset(refusalTimeout)
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // a part will do
		a.refusal = &refusal{resp.StatusCode, resp.Header, body, *d}
		o.Logger.Debug("a rank refused a request", "rank", d.Rank, "status", resp.StatusCode)
		return false
	}
	buf := a.proxy.buffers.Get().(*[32 << 10]byte)
	defer a.proxy.buffers.Put(buf)
	n, err := resp.Body.Read(buf[:])
	if n == 0 && err != nil && !errors.Is(err, io.EOF) {
		return a.failed(ctx, err)
	}
	if died := a.died(ctx, resp, buf[:n]); died != nil {
		return a.failed(ctx, died)
	}
	a.pass(cancel, timer, resp, buf[:], n, err)
	return true
}

// died returns an error if the engine died under the request, although its server lives and answers. vLLM then
// answers with status 500, or with an error as the first event of a stream. Errors about one request look the
// same, so the rank is asked whether it is well.
func (a *attempt) died(ctx context.Context, resp *http.Response, first []byte) error {
	check := a.proxy.opts.Check
	failed := resp.StatusCode == http.StatusInternalServerError || a.in.stream && bytes.HasPrefix(first, []byte(`data: {"error"`))
	if check == nil || !failed {
		return nil
	}
	if err := check(ctx, a.decision.Rank); err != nil {
		return fmt.Errorf("an error, and it is not well: %w", err)
	}
	return nil
}

// send makes the request to the engine.
func (a *attempt) send(ctx context.Context) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, a.r.Method, a.decision.Endpoint+a.r.URL.EscapedPath(), bytes.NewReader(a.in.body))
	if err != nil {
		return nil, err
	}
	req.URL.RawQuery = a.r.URL.RawQuery // unchanged: nothing that a client sends may look like a rank's failure
	req.Header = a.proxy.toEngine(a.r, a.in, &a.decision)
	a.span.Inject(req.Header)
	return a.proxy.opts.Transport.RoundTrip(req)
}

// failed notes that the rank gave no answer. It reports whether that is because the client has gone.
func (a *attempt) failed(ctx context.Context, err error) (done bool) {
	if a.r.Context().Err() != nil {
		a.proxy.ended(a.span, endedLeft, 0, "")
		return true
	}
	late := errors.Is(context.Cause(ctx), errFirstByte)
	if late {
		err = errFirstByte
	}
	a.last, a.refusal = fmt.Errorf("rank %d: %w", a.decision.Rank, err), nil
	a.proxy.opts.Logger.Warn("a rank failed a request before the first byte", "rank", a.decision.Rank, "error", err)
	if !late { // a long queue is no fault
		a.proxy.opts.Failed(a.decision.Rank, err)
	}
	return false
}

// outputInterval is how often the progress of a stream is reported to the router.
const outputInterval = time.Second

// pass hands the answer to the client; its first n bytes are in buf, and err came after them. During a write to
// the client only the write's deadline runs: a client that reads slowly is not the rank's fault.
func (a *attempt) pass(cancel context.CancelCauseFunc, timer *time.Timer, resp *http.Response, buf []byte, n int, err error) {
	o, d := &a.proxy.opts, &a.decision
	ok := resp.StatusCode < http.StatusBadRequest
	if ok && a.in.stream { // the first byte of another answer is the end of decoding
		o.Router.PrefillDone(d.Handle)
		o.Observer.FirstToken(a.in.Model, time.Since(a.began))
	}
	toClient(a.w.Header(), resp.Header, a.in, d)
	a.w.WriteHeader(resp.StatusCode)
	timer.Stop()
	idle := time.AfterFunc(o.IdleTimeout, func() { cancel(errIdle) })
	defer idle.Stop()
	control := http.NewResponseController(a.w)
	events, told := 0, time.Now()
	for {
		idle.Stop()
		if n > 0 {
			_ = control.SetWriteDeadline(time.Now().Add(o.IdleTimeout)) // not all writers have one
			if _, werr := a.w.Write(buf[:n]); werr != nil || control.Flush() != nil {
				a.proxy.ended(a.span, endedLeft, resp.StatusCode, "")
				return
			}
			// An event of a stream is about a token.
			events += bytes.Count(buf[:n], []byte("\n\n"))
			if now := time.Now(); now.Sub(told) >= outputInterval {
				o.Router.Output(d.Handle, events)
				events, told = 0, now
			}
		}
		if err != nil {
			break
		}
		idle.Reset(o.IdleTimeout)
		n, err = resp.Body.Read(buf)
	}
	a.finish(resp, err, ok)
}

// finish counts how the answer ended. An answer that broke off must not look complete.
func (a *attempt) finish(resp *http.Response, err error, ok bool) {
	end := func(o outcome, why string) { a.proxy.ended(a.span, o, resp.StatusCode, why) }
	switch {
	case errors.Is(err, io.EOF) && ok:
		end(endedOK, "")
		a.proxy.opts.Observer.Answered(a.in.Model, time.Since(a.began))
	case errors.Is(err, io.EOF) && resp.StatusCode < http.StatusInternalServerError:
		end(endedClientError, "")
	case errors.Is(err, io.EOF):
		end(endedFailed, "the rank answered "+resp.Status)
	case a.r.Context().Err() != nil:
		end(endedLeft, "")
	default:
		end(endedBroken, err.Error())
		a.proxy.opts.Logger.Warn("a rank broke off its answer", "rank", a.decision.Rank, "error", err)
		a.proxy.opts.Failed(a.decision.Rank, err)
		if a.in.stream {
			_ = http.NewResponseController(a.w).SetWriteDeadline(time.Now().Add(a.proxy.opts.IdleTimeout)) // the last one may be over
			e := front.Error{Code: "upstream_broke_off", Message: "the rank broke off its answer"}
			body, _ := json.Marshal(e.Body())                 // texts always have a form in JSON
			_, _ = fmt.Fprintf(a.w, "\n\ndata: %s\n\n", body) // the client may have gone
			_ = http.NewResponseController(a.w).Flush()
		}
		panic(http.ErrAbortHandler) // closes the connection without an end
	}
}
