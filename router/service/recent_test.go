package service

import (
	"errors"
	"testing"
	"time"

	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/route"
)

func TestTheLastDecisionsAreRemembered(t *testing.T) {
	var r recent
	start := time.Now()
	if a := r.answer(start); a.Decisions == nil || len(a.Decisions) != 0 {
		t.Errorf("%v", a)
	}
	d := route.Decision{Model: "m", PromptTokens: 100}
	for i := range 2*recentDecisions + 3 {
		d.Rank, d.Reason, d.UseTokens, d.LoadDisk = int32(i), policy.ReasonScore, 60, 40
		r.note(start.Add(time.Duration(i)*time.Second), &d, nil)
	}
	r.note(start.Add(time.Hour), &route.Decision{Decision: policy.Decision{Rank: -1}}, errors.New("no model"))
	a := r.answer(start.Add(time.Hour)).Decisions
	if len(a) != recentDecisions || a[0].Error != "no model" || a[0].Rank != -1 || a[0].AgeS != 0 {
		t.Fatalf("%+v", a[0])
	}
	if want := int32(2*recentDecisions + 2); a[1].Rank != want || a[1].GPUTokens != 20 || a[1].AgeS != 3600-float64(want) {
		t.Errorf("%+v", a[1])
	}
}

func TestRememberingADecisionAllocatesNothing(t *testing.T) {
	var r recent
	d, now := route.Decision{Model: "m"}, time.Now()
	if n := testing.AllocsPerRun(100, func() { r.note(now, &d, nil) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
