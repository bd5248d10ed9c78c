package service

import (
	"errors"
	"testing"
	"time"
)

// A check that was under way when a request failed does not clear the engine: it is checked once more.
func TestACheckFromBeforeAFailureDoesNotCount(t *testing.T) {
	o := Options{HTTP: "127.0.0.1:0", Logger: quiet()}
	o.EnsureDefaults()
	s, err := newServer(&o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.router.Close()
	const url = "http://127.0.0.1:1"
	if err := s.router.Add(ranksOf(url, 2)...); err != nil {
		t.Fatal(err)
	}
	c, e := s.checks, &endpoint{well: true, checking: true}
	c.endpoints[url] = e
	c.failed(0, errors.New("EOF"))
	c.ended(url, e, nil)
	if !e.well || e.failures != failuresUntilOut-1 || e.next.After(time.Now()) {
		t.Errorf("after a check from before: %+v", e)
	}
	e.checking = true
	c.ended(url, e, errors.New("503"))
	if info, _ := s.router.Rank(1); e.well || info.Ready || info.Why != "503" {
		t.Errorf("after one that failed: %+v, %+v", e, info)
	}
	e.checking = true
	c.ended(url, e, nil)
	if info, _ := s.router.Rank(1); !e.well || !info.Ready || e.failures != 0 {
		t.Errorf("after one that went well: %+v, %+v", e, info)
	}
}
