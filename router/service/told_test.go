package service

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/router/route"
)

// Clients that report nothing but ends must not make their ranks look as if they hung.
func TestWhoNeverReportsAPrefillIsNeverLate(t *testing.T) {
	var passed atomic.Int64
	from := time.Now()
	r := start(t, func(o *Options) {
		unchecked(ranksOf("http://h:1", 1)...)(o)
		o.Route = route.Options{Now: func() time.Time { return from.Add(time.Duration(passed.Load())) }}
	})
	asked := 0
	late := func() bool {
		t.Helper()
		asked++
		first := r.route(m{"token_ids": prompt(asked, 1000)})
		passed.Add(int64(30 * time.Second))
		second := r.route(m{"token_ids": prompt(-asked, 16), "explain": true})
		for _, a := range []RouteAnswer{first, second} {
			if status, text := r.do("POST", "/v1/requests/"+a.Request+"/finished", nil, nil); status != 204 {
				t.Errorf("%d %s", status, text)
			}
		}
		return second.Scores[0].QueueSeconds > 1
	}
	for range 2 {
		if late() {
			t.Error("nobody has ever reported the end of a prefill, and a request counts as late")
		}
	}
	if status, _ := r.do("POST", "/v1/requests/1/prefill_done", nil, nil); status != 404 || late() {
		t.Errorf("%d, and late after a report of no request", status)
	}
	a := r.route(m{"token_ids": prompt(0, 16)})
	for _, path := range []string{"prefill_done", "finished"} {
		if status, _ := r.do("POST", "/v1/requests/"+a.Request+"/"+path, nil, nil); status != 204 {
			t.Errorf("%s: %d", path, status)
		}
	}
	if !late() {
		t.Error("ends of prefills are reported, and a request that is 29 s late counts as in time")
	}
}
