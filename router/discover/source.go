package discover

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strings"
	"time"
)

// Source says where ranks are found. One of File, DNS and Service is set.
type Source struct {
	// File is a YAML file with a list ranks, as the router's settings have it.
	File string `json:"file,omitempty"`
	// DNS is a name with one address for each engine, such as that of a headless Service.
	DNS string `json:"dns,omitempty"`
	// Service is a Kubernetes Service whose EndpointSlices name the engines, in Namespace; default the router's own.
	Service   string `json:"service,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Daemons is the Service of the nodes' kvconnds, in DaemonsNamespace (default the router's own) and at DaemonsPort
	// (default 9477). Ranks that have no node get that of the daemon on their machine.
	Daemons          string `json:"daemons,omitempty"`
	DaemonsNamespace string `json:"daemons_namespace,omitempty"`
	DaemonsPort      int    `json:"daemons_port,omitempty"`
	// Rank describes the ranks that DNS and Service find. In its texts {address} stands for an engine's address and, with
	// Service, {node} for its machine.
	Rank json.RawMessage `json:"rank,omitempty"`
	// DPSize is how many data-parallel ranks each address has: dp_rank 0 to DPSize-1. Default 1, the rank as it is.
	DPSize int `json:"dp_size,omitempty"`
	// Interval is how often a file is read, or a name is resolved. Default 1 s and 5 s.
	Interval Duration `json:"interval,omitempty"`
}

// Duration is a time that JSON has as text, such as "5s".
type Duration time.Duration

// UnmarshalText parses a duration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// MarshalText is the text form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

const (
	fileInterval = time.Second
	dnsInterval  = 5 * time.Second
	minInterval  = 100 * time.Millisecond
	defaultPort  = 9477 // of kvconnd's HTTP interface
	maxName      = 253
	maxDPSize    = 1024
)

// Parse reads a source from JSON, with defaults filled in. An unknown field is an error.
func Parse(b []byte) (Source, error) {
	var s Source
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return s, errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return s, errors.New("more than one JSON value")
	}
	s.EnsureDefaults()
	return s, s.Validate()
}

// ParseAll reads sources from JSON: those of a list, then those that flags have as text.
func ParseAll(list []json.RawMessage, flags []string) (sources []Source, err error) {
	for _, text := range flags {
		list = append(list[:len(list):len(list)], json.RawMessage(text))
	}
	for i, b := range list {
		s, err := Parse(b)
		if err != nil {
			return nil, fmt.Errorf("discovery[%d]: %w", i, err)
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// EnsureDefaults fills in what is not set.
func (s *Source) EnsureDefaults() {
	every := Duration(dnsInterval)
	if s.File != "" {
		every = Duration(fileInterval)
	}
	s.Interval = cmp.Or(s.Interval, every)
	s.DPSize = cmp.Or(s.DPSize, 1)
	if s.Daemons != "" {
		s.DaemonsPort = cmp.Or(s.DaemonsPort, defaultPort)
	}
}

// Validate reports the first thing that cannot work.
func (s *Source) Validate() error {
	kinds := 0
	for _, kind := range []string{s.File, s.DNS, s.Service} {
		if kind != "" {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return errors.New("want one of file, dns and service")
	case s.Interval < Duration(minInterval):
		return fmt.Errorf("interval is %s: at least %s", time.Duration(s.Interval), minInterval)
	case s.DPSize < 1 || s.DPSize > maxDPSize:
		return fmt.Errorf("dp_size is %d: 1 to %d", s.DPSize, maxDPSize)
	case s.Service == "" && (s.Namespace != "" || s.Daemons != "" || s.DaemonsNamespace != "" || s.DaemonsPort != 0):
		return errors.New("namespace and daemons… are for a service")
	case s.Daemons == "" && (s.DaemonsNamespace != "" || s.DaemonsPort != 0):
		return errors.New("daemons_namespace and daemons_port are for daemons")
	case s.DaemonsPort < 0 || s.DaemonsPort > 65535:
		return fmt.Errorf("daemons_port is %d: 1 to 65535", s.DaemonsPort)
	}
	if err := s.validateNames(); err != nil {
		return err
	}
	if s.File != "" {
		if len(s.Rank) > 0 || s.DPSize != 1 {
			return errors.New("rank and dp_size are for dns and service: a file has whole ranks")
		}
		return nil
	}
	return s.validateTemplate()
}

// validateNames wants names that are safe in the URLs of the API server.
func (s *Source) validateNames() error {
	label := regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	for _, name := range []string{s.Service, s.Namespace, s.Daemons, s.DaemonsNamespace} {
		if name != "" && (len(name) > maxName || !label.MatchString(name)) {
			return fmt.Errorf("%.64q is no name of Kubernetes: lower-case letters, digits and '-'", name)
		}
	}
	if len(s.DNS) > maxName || strings.ContainsAny(s.DNS, " /:{}") {
		return fmt.Errorf("dns %.64q is no name", s.DNS)
	}
	return nil
}

// validateTemplate makes ranks of an example.
func (s *Source) validateTemplate() error {
	if len(s.Rank) == 0 {
		return errors.New("rank is missing: it describes what is found, such as {model: m, endpoint: \"http://{address}:8000\"}")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(s.Rank, &fields); err != nil {
		return errors.New("rank wants fields")
	}
	if _, ok := fields["id"]; ok {
		return errors.New("rank has an id: the router numbers what it finds")
	}
	endpoint := string(fields["endpoint"])
	if !strings.Contains(endpoint, "{address}") {
		return errors.New("rank.endpoint does not contain {address}: all ranks would be one engine")
	}
	example := place{address: netip.MustParseAddr("192.0.2.1").String(), node: "node"}
	_, err := s.expand(example)
	return err
}

// String names the source in the log.
func (s *Source) String() string {
	switch {
	case s.File != "":
		return "file " + s.File
	case s.DNS != "":
		return "dns " + s.DNS
	case s.Namespace != "":
		return "service " + s.Namespace + "/" + s.Service
	default:
		return "service " + s.Service
	}
}
