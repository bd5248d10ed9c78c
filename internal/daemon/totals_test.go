package daemon

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/internal/daemon/models"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// A counter of a kind that the sums do not know would be 0 in them.
func TestTotalsHaveEveryCounter(t *testing.T) {
	var one, sum models.Sums
	counted := 0
	numbers := func(of *models.Sums, do func(f reflect.StructField, v reflect.Value)) {
		for _, part := range []reflect.Value{reflect.ValueOf(&of.Leader).Elem(), reflect.ValueOf(&of.Worker).Elem()} {
			for i := range part.NumField() {
				if f := part.Type().Field(i); part.Field(i).CanConvert(reflect.TypeFor[float64]()) && f.Tag.Get("sum") != "-" {
					do(f, part.Field(i))
				}
			}
		}
	}
	numbers(&one, func(_ reflect.StructField, v reflect.Value) { v.Set(reflect.ValueOf(1).Convert(v.Type())) })
	counters.Add(&sum, &one)
	counters.Add(&sum, &one)
	numbers(&sum, func(f reflect.StructField, v reflect.Value) {
		if counted++; v.Convert(reflect.TypeFor[float64]()).Float() != 2 {
			t.Errorf("the sum of %s is %v", f.Name, v)
		}
	})
	if counted < 20 {
		t.Errorf("only %d counters", counted)
	}
}

// The models that have their own counters keep them, also those of ranks whose scheduler is on another node.
func TestModelsWithCountersOfTheirOwnStayTheSame(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	for i := range models.MaxModels + 8 {
		m := residencyManifest()
		m.Model = fmt.Sprint("model-", i)
		w, err := b.OpenWorker(t.Context(), server.Peer{Engine: m.Model}, m, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
	}
	names := func() (list []string) {
		_, _, models := b.status(time.Now())
		for i := range models {
			list = append(list, models[i].Model)
		}
		return list
	}
	first := names()
	for range 4 {
		if now := names(); !slices.Equal(now, first) {
			t.Fatalf("%v, and then %v", first, now)
		}
	}
}

// What engines and ranks have counted stays in the totals of their model, exactly once, while
// their last saves are written and when they have long gone.
func TestTotalsNeverRunBackwards(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	m := residencyManifest()
	digest := m.Digest()
	const rounds, blocks = 3, 8
	for round := range uint64(rounds) {
		s, w := openEngine(t, b, m)
		if _, err := s.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 10), PromptTokens: 10}); err != nil {
			t.Fatal(err)
		}
		plan := connector.Plan{Namespace: digest, Saves: []connector.Transfer{{}}}
		for i := range blocks {
			plan.Saves[0].Blocks = append(plan.Saves[0].Blocks, connector.PlanBlock{Slot: uint32(i), Key: connector.Key{byte(round), byte(i + 1)}})
		}
		if r, err := w.Save(t.Context(), plan.Append(nil)); err != nil || r.Taken != blocks {
			t.Fatalf("Save = %+v, %v", r, err)
		}
		w.Close() // its saves are still being written
		s.Close()
		wait.For(t, "the saves are written", w.(*workerSession).Drained)
		wait.For(t, "the totals have the saves", func() bool {
			_, _, models := b.status(time.Now())
			if len(models) != 1 {
				t.Fatalf("round %d: %+v", round, models)
			}
			sum := &models[0].Sum
			if sum.Leader.QueriedTokens != 10*(round+1) || sum.Worker.SavedBlocks > blocks*(round+1) || sum.Worker.SavedBlocks < blocks*round {
				t.Fatalf("round %d: totals %+v", round, sum)
			}
			return sum.Worker.SavedBlocks == blocks*(round+1)
		})
	}
	wait.For(t, "no worker drains", func() bool {
		b.status(time.Now())
		return len(b.draining) == 0 // nobody else is there
	})
	if _, _, models := b.status(time.Now()); len(models) != 1 || models[0].Sum.Worker.SavedBlocks != rounds*blocks || models[0].Sum.Worker.SavedBytes == 0 {
		t.Errorf("%+v", models)
	}
}
