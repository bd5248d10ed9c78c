package config

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestTracesGoWhereTheEndpointSays(t *testing.T) {
	for endpoint, want := range map[string]string{
		"": "", "http://collector:4318": "http://collector:4318/v1/traces", "https://collector/": "https://collector/v1/traces",
		"http://[::1]:4318": "http://[::1]:4318/v1/traces", "https://collector/otlp/mine": "https://collector/otlp/mine",
	} {
		if got, err := (&OTLP{OTLPEndpoint: endpoint}).TracesURL(); got != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", endpoint, got, err, want)
		}
	}
	// Errors are logged, and what is no URL may be anything.
	for _, endpoint := range []string{"secret", "http://secret@h", "http://h?key=secret", "secret://h", "http://h/%secret", "http://", "grpc://secret:4317"} {
		if _, err := (&OTLP{OTLPEndpoint: endpoint}).TracesURL(); err == nil || strings.Contains(err.Error(), "secret@") || strings.Contains(err.Error(), "secret:") {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
}

func TestHeadersAreThoseOfTheSetting(t *testing.T) {
	got, err := (&OTLP{OTLPHeaders: " authorization=Bearer%20a=b%2Cc , x-tenant= t ,"}).Headers()
	if want := map[string]string{"authorization": "Bearer a=b,c", "x-tenant": "t"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for _, headers := range []string{"secret", "=secret", "a b=secret", "a=secret%", "a=secret%0A", "a=secret\n,b"} {
		if h, err := (&OTLP{OTLPHeaders: headers}).Headers(); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, %v", headers, h, err)
		}
	}
}

func TestHeadersOfTracesAreMasked(t *testing.T) {
	s := Serve{OTLP: OTLP{OTLPHeaders: "authorization=secret"}}
	if all := fmt.Sprint(Settings(s, func(string) Source { return Source{} })); strings.Contains(all, "secret") || !strings.Contains(all, "otlp_headers") {
		t.Error(all)
	}
}
