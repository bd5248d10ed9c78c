package daemon

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/opening"
	"github.com/kvconn/kvconn/store/disk"
)

func TestHealthzIs503WithReasons(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	d := &daemon{health: health.New(log), opening: opening.New(log, time.Now(), nil)}
	d.health.Observe(time.Now(), &health.Observation{Stats: disk.Stats{Barriers: 3, BarrierErrors: 3}})
	w := httptest.NewRecorder()
	d.serveHealth(w, nil)
	var got health.State
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusServiceUnavailable || len(got.Reasons) != 1 || got.Reasons[0].Code != "journal_failing" {
		t.Errorf("%d %s, %v", w.Code, w.Body, err)
	}
	w = httptest.NewRecorder()
	d.serveReady(w, nil)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("ready before it is: %d", w.Code)
	}
}
