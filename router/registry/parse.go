package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Parse reads a rank from JSON, with defaults filled in. An unknown field is an error.
func Parse(b []byte) (Rank, error) {
	var r Rank
	err := Merge(&r, b)
	return r, err
}

// Merge changes the fields of r that the JSON object has, fills in defaults and checks the result. If there is
// an error it leaves r unchanged.
func Merge(r *Rank, b []byte) error {
	next := *r
	next.Adapters = slices.Clone(r.Adapters)
	if r.Events != nil {
		events := *r.Events
		next.Events = &events
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&next); err != nil {
		return fmt.Errorf("rank: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("rank: more than one JSON value")
	}
	next.EnsureDefaults()
	if err := next.Validate(); err != nil {
		return err
	}
	*r = next
	return nil
}

// ParseFlag reads a rank from NAME=VALUE pairs with commas between, such as
// id=1,model=m,endpoint=http://10.0.0.1:8000,events=tcp://10.0.0.1:5557. Names are those of the JSON
// form; events and replay are the endpoints of events, and adapters have + between.
func ParseFlag(text string) (Rank, error) {
	fields, events, speeds := map[string]any{}, map[string]any{}, map[string]any{}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return Rank{}, fmt.Errorf("rank %q: want NAME=VALUE pairs with commas between", text)
		}
		switch name {
		case "id", "dp_rank", "dp_start_rank", "max_active", "max_tokens", "block_size":
			fields[name] = json.Number(value)
		case "draining":
			fields[name] = value == "true"
		case "events":
			events["endpoint"] = value
		case "replay":
			events["replay_endpoint"] = value
		case "topic":
			events[name] = value
		case "bind":
			events[name] = value == "true"
		case "adapters":
			fields[name] = strings.Split(value, "+")
		case "prefill_tokens_per_s", "disk_bytes_per_s", "object_bytes_per_s", "bytes_per_token":
			speeds[name] = json.Number(value)
		default:
			fields[name] = value
		}
	}
	if len(events) > 0 {
		fields["events"] = events
	}
	if len(speeds) > 0 {
		fields["speeds"] = speeds
	}
	var r Rank
	b, err := json.Marshal(fields)
	if err == nil {
		r, err = Parse(b)
	}
	if err != nil {
		return Rank{}, fmt.Errorf("rank %q: %w", text, err)
	}
	return r, nil
}
