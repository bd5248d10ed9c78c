package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/nearest"
)

func TestBytes(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "12": 12, "12B": 12, "1KiB": 1024, "1.5 GiB": 3 << 29, "500GB": 500e9, "4tib": 4 << 40, "64mb": 64e6,
		"500G": 500e9, "500Gi": 500 << 30, "128k": 128e3, "128Ki": 128 << 10, "1.5T": 15e11, "2 Mi": 2 << 20,
	} {
		var b Bytes
		if err := b.UnmarshalText([]byte(in)); err != nil || int64(b) != want {
			t.Errorf("%q = %d, %v; want %d", in, b, err, want)
		}
	}
	for _, in := range []string{"", "x", "-1", "1XB", "1e300", "NaN", "10 G iB", "80%", "Gi", "i", "5i", "5GG"} {
		var b Bytes
		if err := b.UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q = %d, want an error", in, b)
		}
	}
	for b, want := range map[Bytes]string{500e9: "500GB", 1e6: "1MB", 64 << 20: "64MiB", 1 << 40: "1TiB", 1000 << 30: "1000GiB", 1024000: "1000KiB", 0: "0B", 999: "999B"} {
		if b.String() != want {
			t.Errorf("%d is written as %s, want %s", b, b, want)
		}
	}
	for _, b := range []Bytes{0, 1, 1024, 3 << 30, 500e9} {
		var again Bytes
		if err := again.UnmarshalText([]byte(b.String())); err != nil || again != b {
			t.Errorf("%d is written as %q and read as %d, %v", b, b.String(), again, err)
		}
	}
}

func TestSpaceIsASizeOrAPercentage(t *testing.T) {
	for in, want := range map[string]Space{
		"": {}, "0": {Set: true}, "20GB": {Set: true, Bytes: 20e9}, "5%": {Set: true, Percent: 5}, " 2.5 % ": {Set: true, Percent: 2.5}, "0%": {Set: true},
	} {
		var s, again Space
		if err := s.UnmarshalText([]byte(in)); err != nil || s != want {
			t.Errorf("%q is %+v, %v; want %+v", in, s, err, want)
		}
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != s {
			t.Errorf("%+v is written as %q and read as %+v, %v", s, s.String(), again, err)
		}
	}
	for _, in := range []string{"x", "-1", "100%", "-1%", "NaN%", "%", "5 GiB %"} {
		var s Space
		if err := s.UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q is %+v, want an error", in, s)
		}
	}
}

func TestACapIsTheStoresChoiceASizeOrAPercentage(t *testing.T) {
	const choice = "80% of what is free or its own"
	for in, want := range map[string]string{
		"": choice, "0": choice, "0B": choice, "0%": choice, "500GB": "500GB", "80%": "80%", "0.5 %": "0.5%",
	} {
		var c Cap
		if err := c.UnmarshalText([]byte(in)); err != nil || c.String() != want {
			t.Errorf("%q is %+v, written as %q, %v; want %q", in, c, c, err, want)
		}
	}
	for _, in := range []string{choice, "100%", "-1%", "lots"} {
		var c Cap
		if err := c.UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q is %+v, want an error", in, c)
		}
	}
	for text, good := range map[string]bool{"": true, "0": true, "1MiB": false, "8MiB": true, "0.001%": true} {
		s := Serve{Dir: "/d", HTTP: "off", LoadTimeout: time.Second, LoadStagingBytes: 1, SaveStagingBytes: 1, StageTimeout: time.Second, StopTimeout: time.Second}
		if err := s.MaxBytes.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(); (err == nil) != good {
			t.Errorf("max_bytes %q: %v", text, err)
		}
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kvconnd.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadFile(t *testing.T) {
	values, _, err := ReadFile[Serve](write(t, "dir: /var/lib/kvconn\nmax_bytes: 500GB\nload_timeout: 5s\n"))
	if err != nil || values["dir"] != "/var/lib/kvconn" || values["max_bytes"] != "500GB" || values["load_timeout"] != "5s" {
		t.Errorf("ReadFile = %v, %v", values, err)
	}
}

func TestReadFileErrorsSayWhatToDo(t *testing.T) {
	for text, want := range map[string]string{
		"max_byte: 1":              `did you mean "max_bytes"?`,
		"sockett: /x":              `did you mean "socket"?`,
		"dir: [a, b]":              "dir wants a single value",
		"dir: a\ndir: b":           "already defined",
		"max_bytes:":               "max_bytes has no value",
		"dir: ~":                   "dir has no value",
		"dir: a\n---\ndir: b":      "more than one document",
		"just words":               "line 1: want settings",
		"- dir: a":                 "line 1: want settings",
		strings.Repeat(" ", 2<<20): "more than",
	} {
		if _, _, err := ReadFile[Serve](write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q in it", text, err, want)
		}
	}
	if _, _, err := ReadFile[Serve]("/nowhere"); err == nil {
		t.Error("a missing file is no error")
	}
	for _, text := range []string{"", "# nothing", "~"} {
		if values, _, err := ReadFile[Serve](write(t, text)); err != nil || len(values) > 0 {
			t.Errorf("%q: %v, %v", text, values, err)
		}
	}
}

func TestValidate(t *testing.T) {
	good := Serve{Dir: "/d", HTTP: "127.0.0.1:0", LoadTimeout: time.Second, LoadStagingBytes: 1, SaveStagingBytes: 1, StageTimeout: time.Second, StopTimeout: time.Second}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Serve){
		"dir":                       func(s *Serve) { s.Dir = "" },
		"max_bytes":                 func(s *Serve) { s.MaxBytes = Cap{Space{Set: true, Bytes: -1}} },
		"writers":                   func(s *Serve) { s.Writers = 257 },
		"read_in_flight_bytes":      func(s *Serve) { s.ReadInFlightBytes = 1000 },
		"event_bytes":               func(s *Serve) { s.EventBytes = 1000 },
		"load_timeout":              func(s *Serve) { s.LoadTimeout = 0 },
		"staging":                   func(s *Serve) { s.SaveStagingBytes = -1 },
		"min_offer_tokens":          func(s *Serve) { s.MinOfferTokens = -1 },
		"no address":                func(s *Serve) { s.HTTP = "localhost" },
		"127.0.0.1:65536":           func(s *Serve) { s.HTTP = "127.0.0.1:65536" },
		"not loopback":              func(s *Serve) { s.HTTP = "0.0.0.0:80" },
		"host_bytes":                func(s *Serve) { s.HostBytes = 1 << 20 },
		"prefill_tokens":            func(s *Serve) { s.PrefillTokensPerS = -1 },
		"stage_timeout":             func(s *Serve) { s.StageTimeout = 0 },
		"stop_timeout":              func(s *Serve) { s.StopTimeout = 0 },
		"pin_max_percent":           func(s *Serve) { s.PinMaxPercent = 91 },
		"scrub_bytes":               func(s *Serve) { s.ScrubBytesPerS = -1 },
		"pprof \"x\"":               func(s *Serve) { s.Pprof = "x" },
		"publish_events is not set": func(s *Serve) { s.PublishTopic = "kv" },
		"one of its own":            func(s *Serve) { s.PublishEvents, s.PublishReplay = "ipc:///e", "ipc:///e" },
		"publish_topic":             func(s *Serve) { s.PublishEvents, s.PublishTopic = "ipc:///e", strings.Repeat("x", 256) },
		"publish_events \"h:1\"":    func(s *Serve) { s.PublishEvents = "h:1" },
		"publish_replay \"tcp":      func(s *Serve) { s.PublishEvents, s.PublishReplay = "ipc:///e", "tcp://127.0.0.1:x" },
		"set publish_remote":        func(s *Serve) { s.PublishEvents = "tcp://*:5557" },
		"http_token":                func(s *Serve) { s.HTTPToken = "secret\n" },
		"record_trace_bytes":        func(s *Serve) { s.RecordTrace, s.RecordTraceBytes = "t", 1 },
		"record_trace_block_tokens": func(s *Serve) { s.RecordTrace, s.RecordTraceBytes = "t", 1<<30 },
		"otlp_endpoint is no URL":   func(s *Serve) { s.OTLPEndpoint = "collector:4318" },
		"put what is secret into":   func(s *Serve) { s.OTLPEndpoint = "http://u:p@collector:4318" },
		"the value of authorization is": func(s *Serve) {
			s.OTLPEndpoint, s.OTLPHeaders = "http://collector:4318", "a=b,authorization=%zz"
		},
		"entry 2 has no name":      func(s *Serve) { s.OTLPEndpoint, s.OTLPHeaders = "http://collector:4318", "a=b,secret" },
		"otlp_trace_ratio is":      func(s *Serve) { s.OTLPEndpoint, s.OTLPTraceRatio = "http://collector:4318", 1.5 },
		"otlp_endpoint is not set": func(s *Serve) { s.OTLPTraceRatio = 1 },
		"this machine":             func(s *Serve) { s.Pprof, s.HTTPRemote = "0.0.0.0:6060", true },
	} {
		s := good
		change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want %q in it", err, want)
		}
	}
	good.HTTP, good.HTTPRemote, good.Pprof = "0.0.0.0:80", true, "localhost:0"
	if err := good.Validate(); err != nil {
		t.Errorf("http_remote: %v", err)
	}
	good.PublishEvents, good.PublishReplay, good.PublishRemote = "tcp://*:5557", "ipc:///run/replay", true
	if err := good.Validate(); err != nil {
		t.Errorf("publish_remote: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("dir: x\nmax_bytes: 1GB\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		values, _, err := parse[Serve](b)
		if err != nil {
			return
		}
		for key := range values {
			if nearest.Of(key, keysOf[Serve]()) != key {
				t.Errorf("unknown key %q was accepted", key)
			}
		}
	})
}
