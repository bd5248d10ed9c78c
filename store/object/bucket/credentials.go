package bucket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Keys are credentials that the program has itself. They print as nothing that helps anybody.
type Keys struct{ ID, Secret, Session string }

const hidden = "(hidden)"

// String implements [fmt.Stringer].
func (Keys) String() string { return hidden }

// Format implements [fmt.Formatter]: no verb shows more.
func (Keys) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// LogValue implements [slog.LogValuer].
func (Keys) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText hides them from encoders.
func (Keys) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// credentialsError says where credentials were looked for, and why there are none.
type credentialsError struct{ text string }

func (e *credentialsError) Error() string { return e.text }

// source has the credentials in use, and fetches them: before they expire, and when they are refused.
// The library waits for a slow source under a lock and without the request's deadline; this does not.
type source struct {
	// fetch gets credentials. It may ignore its context: a process that a profile names does.
	fetch   func(ctx context.Context) (credentials.Value, error)
	timeout time.Duration

	mu      sync.Mutex
	value   *credentials.Value // nil: none
	renewAt time.Time          // fetch others from then on; zero: these don't expire
	fetched *fetched           // under way, or nil
	// secrets are those of all values so far that texts are searched for: the last few.
	secrets []string
}

// renewPause is the least time between fetches of credentials that are in use.
const renewPause = 10 * time.Second

// fetched is one fetch.
type fetched struct {
	done chan struct{}
	err  error
}

func newSource(o Options) *source {
	s := &source{timeout: o.CredentialsTimeout}
	if o.Keys == nil {
		s.fetch = newChain(o.Region).fetch
		return s
	}
	keys := *o.Keys
	s.fetch = func(context.Context) (credentials.Value, error) {
		return credentials.Value{AccessKeyID: keys.ID, SecretAccessKey: keys.Secret, SessionToken: keys.Session, SignerType: credentials.SignatureV4}, nil
	}
	return s
}

// ready waits until there are credentials. What it returns is for forget.
func (s *source) ready(ctx context.Context) (*credentials.Value, error) {
	for {
		value, under := s.state()
		if value != nil {
			return value, nil
		}
		timer := time.NewTimer(s.timeout)
		select {
		case <-under.done:
			timer.Stop()
			if under.err != nil {
				return nil, under.err
			}
		case <-timer.C:
			return nil, &credentialsError{fmt.Sprintf("no credentials after %v: what gives them does not answer", s.timeout)}
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// state returns the credentials in use, or, without any, the fetch that has to be waited for. If they
// expire soon a fetch begins, and nobody waits for it: whether they have expired is for the server to
// say, by its clock.
func (s *source) state() (*credentials.Value, *fetched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.value != nil && (s.renewAt.IsZero() || time.Now().Before(s.renewAt)) {
		return s.value, nil
	}
	if s.fetched == nil {
		s.fetched = &fetched{done: make(chan struct{})}
		go s.run(s.fetched)
	}
	return s.value, s.fetched
}

// run fetches credentials.
func (s *source) run(f *fetched) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	value, err := s.fetch(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	f.err = err
	s.fetched = nil
	if err == nil {
		s.take(&value)
	} else {
		s.renewAt = time.Now().Add(renewPause) // those in use may be good for long
	}
	close(f.done)
}

// take takes credentials into use. They are renewed at four fifths of their life.
func (s *source) take(value *credentials.Value) {
	const remembered, shortest = 9, 4
	s.value, s.renewAt = value, time.Time{}
	if left := time.Until(value.Expiration); !value.Expiration.IsZero() {
		s.renewAt = time.Now().Add(max(left-left/5, renewPause))
	}
	for _, secret := range []string{value.SecretAccessKey, value.SessionToken, value.AccessKeyID} {
		if len(secret) >= shortest { // less is in every text
			s.secrets = append(s.secrets, secret)
		}
	}
	s.secrets = s.secrets[max(0, len(s.secrets)-remembered):]
}

// forget drops credentials that the server refused, so that the next request fetches them.
func (s *source) forget(used *credentials.Value) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.value == used {
		s.value = nil
	}
}

func (s *source) now() *credentials.Value {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// redact takes credentials out of a text.
func (s *source) redact(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, secret := range s.secrets {
		for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret)} {
			text = strings.ReplaceAll(text, form, hidden)
		}
	}
	return text
}

// handed gives the library what the source has.
type handed struct {
	source *source
	given  *credentials.Value // the library's lock protects it
}

// RetrieveWithCredContext implements [credentials.Provider].
func (h *handed) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return h.Retrieve()
}

// Retrieve implements [credentials.Provider].
func (h *handed) Retrieve() (credentials.Value, error) {
	value := h.source.now()
	switch {
	case value != nil:
		h.given = value
	case h.given == nil: // requests wait until there are some
		return credentials.Value{}, &credentialsError{"no credentials"}
	}
	return *h.given, nil // if the server has just refused them to another request, it will to this one
}

// IsExpired implements [credentials.Provider].
func (h *handed) IsExpired() bool {
	value := h.source.now()
	return h.given == nil || value != nil && value != h.given
}

// chain looks for credentials where users of S3 tools have them.
type chain struct {
	environment *credentials.EnvAWS
	files       *credentials.FileAWSCredentials
	role        *credentials.IAM
	client      *http.Client
}

func newChain(region string) *chain {
	// Services that give credentials are near: one that is not there must not hold up others long.
	dialer := net.Dialer{Timeout: 2 * time.Second}
	client := &http.Client{Transport: &http.Transport{Proxy: proxyOfRoles, DialContext: dialer.DialContext, TLSHandshakeTimeout: 5 * time.Second, MaxIdleConns: 2, IdleConnTimeout: time.Second}}
	return &chain{
		environment: &credentials.EnvAWS{},
		files:       &credentials.FileAWSCredentials{},
		role:        &credentials.IAM{Client: client, Region: region},
		client:      client,
	}
}

// proxyOfRoles is the proxy for requests for credentials: none to the addresses of a node's own services.
func proxyOfRoles(r *http.Request) (*url.URL, error) {
	if ip := net.ParseIP(r.URL.Hostname()); ip != nil && (ip.IsLinkLocalUnicast() || ip.IsLoopback() || ip.IsPrivate()) {
		return nil, nil
	}
	return http.ProxyFromEnvironment(r)
}

// fetch asks one place after the other, in the sequence of other tools: variables, a role that
// variables name, the shared files, the role of the machine. Their errors are not passed on as they
// are: a file's may quote a line of it.
func (c *chain) fetch(ctx context.Context) (credentials.Value, error) {
	named := os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "" || os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" || os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != ""
	disabled := strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true")
	cc := &credentials.CredContext{Client: c.client, Context: ctx}
	var why []string
	for _, place := range []struct {
		name string
		skip bool
		ask  credentials.Provider
		say  func(error) string
	}{
		{"variables", false, c.environment, nil},
		{"role of the variables", !named, c.role, sayRole},
		{"shared files", false, c.files, sayFile},
		{"role of the machine", named || disabled, c.role, sayRole},
	} {
		if place.skip {
			continue
		}
		value, err := place.ask.RetrieveWithCredContext(cc)
		switch {
		case err == nil && value.AccessKeyID != "" && value.SecretAccessKey != "":
			return value, nil
		case ctx.Err() != nil:
			return credentials.Value{}, &credentialsError{"no credentials in time; last asked: " + place.name}
		case err != nil:
			why = append(why, place.name+": "+place.say(err))
		default:
			why = append(why, place.name+": none")
		}
	}
	return credentials.Value{}, &credentialsError{"no credentials: " + strings.Join(why, "; ")}
}

// sayRole says why a role gave no credentials: what went wrong on the way, and no more than that.
func sayRole(err error) string {
	var wrapped *url.Error
	var path *fs.PathError
	switch {
	case errors.As(err, &path):
		return path.Error()
	case errors.As(err, &wrapped) && wrapped.Timeout():
		return "no answer"
	case errors.As(err, &wrapped):
		return wrapped.Err.Error()
	}
	var answer credentials.ErrorResponse
	if errors.As(err, &answer) {
		return "refused: " + answer.STSError.Code
	}
	if text := err.Error(); len(text) < 40 { // an HTTP status
		return text
	}
	return "refused"
}

// sayFile says why the shared files gave none.
func sayFile(err error) string {
	var path *fs.PathError
	var process *exec.ExitError
	text := err.Error()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "none"
	case errors.As(err, &path):
		return path.Error()
	case errors.As(err, &process):
		return "credential_process: " + process.ProcessState.String()
	case strings.HasPrefix(text, "section ") && strings.HasSuffix(text, "does not exist"):
		return "they have no such profile"
	case strings.HasPrefix(text, "cached SSO token is expired"), strings.HasPrefix(text, "profile has "):
		return text
	}
	return "not usable"
}
