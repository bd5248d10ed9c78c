package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestTimesHaveAUnit(t *testing.T) {
	var out bytes.Buffer
	New(&out, "info", "json").Info("x", "took", 1500*time.Millisecond, "n", 2)
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["took_s"] != 1.5 || line["n"] != 2.0 || line["took"] != nil {
		t.Errorf("%v %s", err, &out)
	}
	out.Reset()
	New(&out, "info", "text").Info("x", "took", 1500*time.Millisecond)
	if !strings.Contains(out.String(), "took=1.5s") {
		t.Errorf("%s", &out)
	}
}

func TestTheLastErrorIsALineOfAJSONLogAlone(t *testing.T) {
	var out bytes.Buffer
	cause := errors.New("no disk")
	if err := Last(&out, "text", cause); err != cause || Logged(err) || out.Len() > 0 {
		t.Errorf("%v %s", err, &out)
	}
	if err := Last(&out, "json", nil); err != nil || out.Len() > 0 {
		t.Errorf("%v %s", err, &out)
	}
	if err := Last(&out, "json", cause); !errors.Is(err, cause) || !Logged(err) || !strings.Contains(out.String(), `"err":"no disk"`) {
		t.Errorf("%v %s", err, &out)
	}
}
