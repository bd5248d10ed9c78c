package config

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// maxTopicBytes is the longest topic that a subscription can name.
const maxTopicBytes = 255

// validatePublish checks the settings of published events.
func (s *Serve) validatePublish() error {
	if s.PublishEvents == "" {
		if s.PublishReplay != "" || s.PublishTopic != "" || s.PublishModel != "" || s.PublishRemote {
			return errors.New("publish_events is not set: the other publish_ settings mean nothing without it")
		}
		return nil
	}
	if len(s.PublishTopic) > maxTopicBytes {
		return fmt.Errorf("publish_topic has %d bytes: at most %d", len(s.PublishTopic), maxTopicBytes)
	}
	if s.PublishReplay == s.PublishEvents && !strings.HasSuffix(s.PublishEvents, ":0") {
		return errors.New("publish_replay is the endpoint of publish_events: it needs one of its own")
	}
	return errors.Join(s.validateEndpoint("publish_events", s.PublishEvents), s.validateEndpoint("publish_replay", s.PublishReplay))
}

// validateEndpoint checks a ZeroMQ endpoint: tcp://HOST:PORT, with * for all addresses, or
// ipc://PATH. No endpoint is also right.
func (s *Serve) validateEndpoint(key, endpoint string) error {
	if endpoint == "" {
		return nil
	}
	scheme, rest, _ := strings.Cut(endpoint, "://")
	if scheme == "ipc" && rest != "" {
		return nil
	}
	_, port, err := net.SplitHostPort(rest)
	if n, portErr := strconv.Atoi(port); scheme != "tcp" || err != nil || portErr != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%s %q is no endpoint: want tcp://HOST:PORT or ipc://PATH", key, endpoint)
	}
	if loopback, err := isLoopback(rest); err != nil || !loopback && !s.PublishRemote {
		return fmt.Errorf("%s %q is not loopback: set publish_remote to allow that; there is no authentication", key, endpoint)
	}
	return nil
}
