package disk

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/eventlog"
)

// follow applies a subscription to a set of records until the store closes.
func follow(t *testing.T, u store.Subscription) map[store.RecordID]bool {
	t.Helper()
	have := make(map[store.RecordID]bool)
	ctx := context.Background()
	err := u.Snapshot(ctx, func(r store.Resident) error { have[r.ID] = true; return nil })
	if err != nil {
		t.Error(err)
	}
	last := u.Seq()
	for {
		events, err := u.Next(ctx)
		if errors.Is(err, store.ErrClosed) {
			return have
		}
		if err != nil {
			t.Error(err)
			return have
		}
		for _, e := range events {
			if last++; e.Seq != last {
				t.Errorf("event %d after %d", e.Seq, last-1)
			}
			switch e.Kind {
			case store.EventStored:
				if have[e.ID] {
					t.Errorf("event %d: %v stored twice", e.Seq, e.ID)
				}
				have[e.ID] = true
			case store.EventRemoved:
				if !have[e.ID] {
					t.Errorf("event %d: %v removed and was not there", e.Seq, e.ID)
				}
				delete(have, e.ID)
			}
		}
	}
}

func TestSubscribersKnowExactlyWhatIsThere(t *testing.T) {
	t.Parallel()
	o := testOptions(t.TempDir())
	o.MaxBytes = 12 << 20
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	var subscribers sync.WaitGroup
	views := make([]map[store.RecordID]bool, 3)
	for chain := range 30 {
		if chain%10 == 5 {
			u, err := s.Subscribe(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			subscribers.Go(func() { views[chain/10] = follow(t, u) })
		}
		mustWrite(t, s, chainOf(ns, chain, 30))
	}
	if s.Stats().Evicted == 0 {
		t.Fatal("nothing was evicted")
	}
	here := make(map[store.RecordID]bool)
	if err := s.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	subscribers.Wait()
	s = openTest(t, o)
	for chain := range 30 {
		for _, r := range chainOf(ns, chain, 30) {
			if isPresent(s, r.ID) {
				here[r.ID] = true
			}
		}
	}
	for i, view := range views {
		if len(view) != len(here) {
			t.Errorf("subscriber %d knows of %d records, there are %d", i, len(view), len(here))
		}
		for id := range view {
			if !here[id] {
				t.Errorf("subscriber %d: %v is not there", i, id)
				break
			}
		}
	}
}

func TestSubscriberThatLagsIsTold(t *testing.T) {
	o := testOptions(t.TempDir())
	o.EventBytes = eventlog.LeastBytes
	s := openTest(t, o)
	u, err := s.Subscribe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	for range eventlog.LeastBytes/eventlog.EventBytes/1000 + 1 {
		s.events.Publish(make([]eventlog.Event, 1000))
	}
	if err := u.Snapshot(context.Background(), func(store.Resident) error { return nil }); err != nil {
		t.Errorf("an empty snapshot: %v", err)
	}
	if _, err := u.Next(context.Background()); !errors.Is(err, store.ErrLagged) {
		t.Errorf("error %v", err)
	}
}

func TestSubscriberMayResume(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	u, err := s.Subscribe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	records := chainOf(ns, 1, 5)
	mustWrite(t, s, records)
	again, err := s.SubscribeAfter(s.Epoch(), u.Seq())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n := 0
	for n < len(records) {
		events, err := again.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.ID != records[n].ID || e.Parent != records[n].Parent || e.Kind != store.EventStored {
				t.Errorf("event %+v, want %+v", e, records[n])
			}
			n++
		}
	}
	if _, err := s.SubscribeAfter(s.Epoch()+1, 0); !errors.Is(err, store.ErrLagged) {
		t.Errorf("other epoch: %v", err)
	}
	if _, err := s.SubscribeAfter(s.Epoch(), 1000); !errors.Is(err, store.ErrLagged) {
		t.Errorf("event that never was: %v", err)
	}
	cancel()
	if _, err := again.Next(ctx); !errors.Is(err, store.ErrTimeout) {
		t.Errorf("after the end of the context: %v", err)
	}
}

func TestStoreClosesUnderAnOpenSubscription(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	mustWrite(t, s, chainOf(ns, 1, 5))
	u, err := s.Subscribe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := u.Snapshot(context.Background(), func(store.Resident) error { t.Error("a record"); return nil }); err != nil {
		t.Error(err)
	}
	if _, err := u.Next(context.Background()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("next: %v", err)
	}
	if _, err := s.Subscribe(context.Background()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("subscribe: %v", err)
	}
	if _, err := s.OpenNamespace(testManifest("late")); err == nil {
		t.Error("a namespace was registered in a closed store")
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
}
