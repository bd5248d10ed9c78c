package config

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// OTLP are the settings of the traces that are sent, a part of [Serve].
type OTLP struct {
	OTLPEndpoint   string  `name:"otlp-endpoint" env:"KVCONN_OTLP_ENDPOINT" placeholder:"URL" help:"Collector that OpenTelemetry spans of matches, loads and saves are sent to, by OTLP over HTTP, such as http://127.0.0.1:4318. /v1/traces is added if the URL has no path. Default: none."`
	OTLPHeaders    string  `name:"otlp-headers" env:"KVCONN_OTLP_HEADERS" secret:"true" placeholder:"KEY=VALUE,..." help:"Headers for the collector, as in OTEL_EXPORTER_OTLP_HEADERS: a space or comma in a value is %20 or %2C. Set them in the environment or the file: a command line can be seen by others."`
	OTLPTraceRatio float64 `name:"otlp-trace-ratio" env:"KVCONN_OTLP_TRACE_RATIO" default:"0" placeholder:"N" help:"Share of the requests without a traceparent that begin a trace, 0 to 1 (default 0). Those with one follow its sampled flag."`
}

// RouterOTLP are those of a router, a part of [Router]. Their fields are those of [OTLP], so that one can be converted to the other.
type RouterOTLP struct {
	OTLPEndpoint   string  `name:"otlp-endpoint" env:"KVCONN_ROUTER_OTLP_ENDPOINT" placeholder:"URL" help:"Collector that OpenTelemetry spans of forwarded requests are sent to, by OTLP over HTTP, such as http://127.0.0.1:4318. /v1/traces is added if the URL has no path. Default: none."`
	OTLPHeaders    string  `name:"otlp-headers" env:"KVCONN_ROUTER_OTLP_HEADERS" secret:"true" placeholder:"KEY=VALUE,..." help:"Headers for the collector, as in OTEL_EXPORTER_OTLP_HEADERS: a space or comma in a value is %20 or %2C. Set them in the environment or the file: a command line can be seen by others."`
	OTLPTraceRatio float64 `name:"otlp-trace-ratio" env:"KVCONN_ROUTER_OTLP_TRACE_RATIO" default:"0" placeholder:"N" help:"Share of the requests without a traceparent that begin a trace, 0 to 1 (default 0). Those with one follow its sampled flag."`
}

// tracesPath is where collectors take traces.
const tracesPath = "/v1/traces"

var errNoURL = errors.New("otlp_endpoint is no URL: want http://HOST:PORT or https://HOST:PORT")

// TracesURL is where spans are posted to, "" if there are to be none.
func (o *OTLP) TracesURL() (string, error) {
	if o.OTLPEndpoint == "" {
		return "", nil
	}
	u, err := url.Parse(o.OTLPEndpoint)
	switch {
	case err != nil: // the text of err has the URL, and with it what may be a secret
		return "", errNoURL
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("otlp_endpoint has a user, a query or a fragment, and it is shown in logs: put what is secret into otlp_headers")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", errNoURL
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = tracesPath
	}
	return u.String(), nil
}

// Headers are the headers that are sent with traces. Errors don't say the values.
func (o *OTLP) Headers() (map[string]string, error) {
	headers := make(map[string]string)
	for _, entry := range strings.Split(o.OTLPHeaders, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		key, value, ok := strings.Cut(entry, "=")
		key = strings.TrimSpace(key)
		if !ok || !httpguts.ValidHeaderFieldName(key) {
			return nil, fmt.Errorf("otlp_headers: entry %d has no name of a header: want KEY=VALUE,KEY=VALUE", len(headers)+1)
		}
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if err != nil || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("otlp_headers: the value of %s is none of a header: write other characters as %%XX", key)
		}
		headers[key] = value
	}
	return headers, nil
}

// validate checks the settings of traces.
func (o *OTLP) validate() error {
	_, err := o.TracesURL()
	_, headersErr := o.Headers()
	switch {
	case err != nil || headersErr != nil:
		return errors.Join(err, headersErr)
	case math.IsNaN(o.OTLPTraceRatio) || o.OTLPTraceRatio < 0 || o.OTLPTraceRatio > 1:
		return fmt.Errorf("otlp_trace_ratio is %v: 0 to 1", o.OTLPTraceRatio)
	case o.OTLPEndpoint == "" && (o.OTLPHeaders != "" || o.OTLPTraceRatio != 0):
		return errors.New("otlp_endpoint is not set: otlp_headers and otlp_trace_ratio mean nothing without it")
	}
	return nil
}
