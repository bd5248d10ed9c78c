package contents

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/daemon/models"
	"github.com/kvconn/kvconn/store"
)

func of(manifest string, records, bytes int64) store.Contents {
	return store.Contents{NamespaceInfo: store.NamespaceInfo{Manifest: []byte(manifest)}, Records: records, Bytes: bytes}
}

func TestNamespacesAreSummedByModel(t *testing.T) {
	got := byModel([]store.Contents{
		of(`{"model":"a"}`, 1, 10), of(`{"model":"b"}`, 5, 500), of(`{"model":"a"}`, 2, 20), of(`{"model":"empty"}`, 0, 0), of("", 3, 1), of("{}", 4, 1),
	})
	want := []Model{{"b", 1, 5, 500}, {"a", 2, 3, 30}, {unknown, 2, 7, 2}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v", got)
	}
}

// Names come from clients.
func TestModelsAreBounded(t *testing.T) {
	var all []store.Contents
	for i := range 3 * models.MaxModels {
		all = append(all, of(fmt.Sprintf(`{"model":"%s%d"}`, strings.Repeat("x", models.MaxNameBytes-2), i%90+10), 1, int64(i)))
	}
	all = append(all, of(`{"model":"`+strings.Repeat("y", 1000)+`"}`, 1, 1<<40), of(`{"model":"other"}`, 1, 1<<30))
	got := byModel(all)
	if len(got) != models.MaxModels+1 || got[models.MaxModels].Model != models.Other || len(got[0].Model) != models.MaxNameBytes {
		t.Errorf("%d models, the last is %q", len(got), got[len(got)-1].Model)
	}
	records, names := int64(0), make(map[string]bool)
	for _, m := range got {
		if names[m.Model] {
			t.Errorf("%s is there twice", m.Model)
		}
		names[m.Model] = true
		records += m.Records
	}
	if records != int64(len(all)) {
		t.Errorf("%d of %d records", records, len(all))
	}
}

func TestACounterCounts(t *testing.T) {
	var c Counter
	if c.Models() != nil {
		t.Error("there is a count before the first")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx, func() []store.Contents {
			defer cancel()
			return []store.Contents{of(`{"model":"a"}`, 1, 10)}
		})
	}()
	<-done
	if m := c.Models(); len(m) != 1 || m[0].Bytes != 10 {
		t.Errorf("%v", m)
	}
}
