package manual

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/kvconn/kvconn/internal/config"
)

// Every setting is explained once, and nothing else is.
func TestEverySettingIsExplainedOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		groups []Group
		schema reflect.Type
	}{{Serve(), reflect.TypeFor[config.Serve]()}, {Router(), reflect.TypeFor[config.Router]()}} {
		explained := make(map[string]int)
		for _, g := range c.groups {
			if g.Title == "" || g.Question == "" {
				t.Errorf("%+v has no title or question", g)
			}
			for _, s := range g.Settings {
				if explained[s.Key]++; s.Meaning == "" {
					t.Errorf("%s has no meaning", s.Key)
				}
			}
		}
		for _, f := range reflect.VisibleFields(c.schema) {
			name, ok := f.Tag.Lookup("name")
			if !ok {
				continue
			}
			key := config.Key(name)
			if explained[key] != 1 {
				t.Errorf("%s: %s is explained %d times", c.schema, key, explained[key])
			}
			delete(explained, key)
		}
		for key := range explained {
			t.Errorf("%s has no setting %s", c.schema, key)
		}
	}
}

func TestTheDocumentIsUpToDate(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	want, err := Document(root)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(root, Path)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what go generate ./internal/manual makes: %v", Path, err)
	}
}
