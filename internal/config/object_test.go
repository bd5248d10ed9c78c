package config

import (
	"strings"
	"testing"
	"time"
)

func objectSettings() Serve {
	return Serve{Dir: "/d", HTTP: "off", LoadTimeout: time.Second, LoadStagingBytes: 1, SaveStagingBytes: 1, StageTimeout: 1, StopTimeout: time.Second,
		Object: Object{
			ObjectURL: "s3://bucket/a", ObjectUploadAge: time.Second, ObjectUploads: 1, ObjectConnections: 1, ObjectReadInFlight: 8 << 20,
			ObjectPollMax: time.Second, ObjectIndexBytes: 1 << 20, ObjectPrices: "5,0.4,0.023", ObjectPolicy: "all",
		}}
}

func TestObjectSettingsAreChecked(t *testing.T) {
	good := objectSettings()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Serve){
		"object is not set":           func(s *Serve) { s.ObjectURL, s.ObjectRegion = "", "eu" },
		"object_max_age":              func(s *Serve) { s.ObjectMaxAge = -1 },
		"object_upload_age":           func(s *Serve) { s.ObjectUploadAge = 2 * time.Hour },
		"object_uploads":              func(s *Serve) { s.ObjectUploads = 0 },
		"object_connections":          func(s *Serve) { s.ObjectConnections = 5000 },
		"object_read_in_flight_bytes": func(s *Serve) { s.ObjectReadInFlight = 1 << 20 },
		"object_poll_max":             func(s *Serve) { s.ObjectPollMax = time.Hour },
		"object_index_bytes":          func(s *Serve) { s.ObjectIndexBytes = 1 },
		"load_timeout":                func(s *Serve) { s.LoadTimeout = 3 * time.Minute },
		`"never" is no policy`:        func(s *Serve) { s.ObjectPolicies = "llama*=never" },
		`"llama" is not MODEL=POLICY`: func(s *Serve) { s.ObjectPolicies = "llama" },
		"three numbers":               func(s *Serve) { s.ObjectPrices = "5,4" },
		`"NaN" is no price`:           func(s *Serve) { s.ObjectPrices = "5,NaN,1" },
	} {
		s := objectSettings()
		change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestObjectPolicies(t *testing.T) {
	o := Object{ObjectPolicy: "all", ObjectPolicies: "meta/*-8b=off, *chat*=second-use,meta/*=off,a=b=off"}
	policy, err := o.PolicyOf()
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{
		"meta/llama-8b": "off", "meta/llama-chat": "second-use", "meta/llama": "off", "qwen": "all", "qwen-chat": "second-use",
		"meta": "all", "a=b": "off", "": "all",
	} {
		if got := policy(model); got != want {
			t.Errorf("%q: %s, want %s", model, got, want)
		}
	}
}
