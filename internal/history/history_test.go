package history

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
	"time"
)

func TestTheLastHourIsKept(t *testing.T) {
	n := 0.0
	r := New(func(v []float64) { n++; v[0], v[1] = n, -n }, "looks_total", "minus")
	start := time.Now()
	if a := r.Answer(start); len(a.AgesS) != 0 || len(a.Series["minus"]) != 0 {
		t.Errorf("before the first look: %+v", a)
	}
	const looks = 2*points + 7
	for i := range looks {
		r.look(start.Add(time.Duration(i) * Interval))
	}
	a := r.Answer(start.Add(time.Duration(looks) * Interval))
	counts := a.Series["looks_total"]
	if len(counts) != points || counts[0] != float64(looks-points+1) || counts[points-1] != float64(looks) || a.Series["minus"][points-1] != -float64(looks) {
		t.Errorf("%v", counts)
	}
	if a.AgesS[points-1] != Interval.Seconds() || a.AgesS[0] != float64(points)*Interval.Seconds() {
		t.Errorf("%v", a.AgesS)
	}
}

func TestTheHistoryIsServed(t *testing.T) {
	r := New(func(v []float64) { v[0] = 7 }, "x")
	r.look(time.Now())
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	var a Answer
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || a.IntervalS != 10 || a.Series["x"][0] != 7 {
		t.Errorf("%v, %s", err, w.Body)
	}
}
