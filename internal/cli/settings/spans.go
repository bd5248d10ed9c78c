package settings

import (
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/spans"
)

// SpansOptions are the settings of traces, a daemon's or a router's; nil if there are to be none.
func SpansOptions(s *config.OTLP) (*spans.Options, error) {
	url, err := s.TracesURL()
	if err != nil || url == "" {
		return nil, err
	}
	headers, err := s.Headers()
	if err != nil {
		return nil, err
	}
	return &spans.Options{URL: url, Headers: headers, Ratio: s.OTLPTraceRatio}, nil
}
