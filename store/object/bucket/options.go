package bucket

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// Styles of the URLs of objects.
const (
	// StyleAuto is virtual where the endpoint is one of AWS, or of another provider that is known to
	// want it, and path elsewhere.
	StyleAuto = "auto"
	// StylePath has the bucket in the path.
	StylePath = "path"
	// StyleVirtual has the bucket in the host.
	StyleVirtual = "virtual"
)

// Options says which bucket it is, and how it is spoken to. The zero value of a field means its
// default, which [Options.EnsureDefaults] fills in.
type Options struct {
	// URL is s3://BUCKET or s3://BUCKET/PREFIX.
	URL string
	// Endpoint is the URL of the server, http or https, with no path. Default: AWS, by the region.
	Endpoint string
	// Style is one of the styles. Default auto.
	Style string
	// Region is the bucket's. Default: AWS_REGION, or AWS_DEFAULT_REGION, as users of S3 tools have
	// set it; else the server is asked once.
	Region string
	// CAFile has roots in PEM by which a server is verified, beside those of the system.
	CAFile string
	// Keys are credentials for servers in the process. Default: those that users of S3 tools have
	// (see credentials.go); they are in no setting.
	Keys *Keys
	// Connections is how many connections are kept open while they are not in use. Default 32: as
	// many transfers as the tier has at one time.
	Connections int
	// UploadBytesPerS and DownloadBytesPerS bound the bytes of objects. Default 0: no bound.
	UploadBytesPerS, DownloadBytesPerS int64
	// ConnectTimeout bounds the making of a connection, and its TLS handshake. Default 5 s.
	ConnectTimeout time.Duration
	// Stall is how long an attempt may go without a byte in either direction. Default 10 s: a server
	// that needs more to answer is of no use to a load, and one that writes 64 MiB to slow disks
	// answers within it.
	Stall time.Duration
	// Timeout bounds one attempt, from its start to the last byte of its answer. Default 2 min: 64 MiB
	// at half a MiB a second.
	Timeout time.Duration
	// Silence is how long no request may have a byte before the breaker opens. Default 2 s: loads wait
	// for the bucket that long, and then for none.
	Silence time.Duration
	// Attempts bounds how often a request is sent. Default 8: with pauses that double from 100 ms on
	// that is 25 s at most. The breaker ends most earlier.
	Attempts int
	// CredentialsTimeout is how long a request waits for credentials to be fetched. Default 10 s.
	CredentialsTimeout time.Duration
	// Transport carries requests in place of connections: for servers in the process, and tests.
	Transport http.RoundTripper
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

const (
	defaultConnections = 32
	defaultAttempts    = 8
	maxAttempts        = 100
	maxPrefixBytes     = 512

	defaultConnectTimeout     = 5 * time.Second
	defaultStall              = 10 * time.Second
	defaultTimeout            = 2 * time.Minute
	defaultSilence            = 2 * time.Second
	defaultCredentialsTimeout = 10 * time.Second
)

// EnsureDefaults fills in every field that is zero.
func (o *Options) EnsureDefaults() {
	o.Style = cmp.Or(o.Style, StyleAuto)
	o.Region = cmp.Or(o.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	o.Connections = cmp.Or(o.Connections, defaultConnections)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, defaultConnectTimeout)
	o.Stall = cmp.Or(o.Stall, defaultStall)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Silence = cmp.Or(o.Silence, defaultSilence)
	o.Attempts = cmp.Or(o.Attempts, defaultAttempts)
	o.CredentialsTimeout = cmp.Or(o.CredentialsTimeout, defaultCredentialsTimeout)
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Validate reports options that make no sense, by the names of their settings. What it says never has
// the text of a URL in it: people put passwords there.
func (o *Options) Validate() error {
	if _, _, err := splitURL(o.URL); err != nil {
		return err
	}
	_, secure, err := splitEndpoint(o.Endpoint)
	switch {
	case err != nil:
		return err
	case o.Style != StyleAuto && o.Style != StylePath && o.Style != StyleVirtual:
		return fmt.Errorf("object_style %q: want %s, %s or %s", o.Style, StyleAuto, StylePath, StyleVirtual)
	case o.CAFile != "" && !secure:
		return errors.New("object_ca is for an endpoint that begins with https://")
	case strings.ContainsFunc(o.Region, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }):
		return errors.New("object_region is not the name of a region")
	case o.UploadBytesPerS < 0 || o.DownloadBytesPerS < 0:
		return errors.New("object_upload_bytes_per_s and object_download_bytes_per_s are 0, for no bound, or more")
	case o.Connections < 1:
		return fmt.Errorf("object_connections %d: want at least 1", o.Connections)
	case o.Attempts < 1 || o.Attempts > maxAttempts:
		return fmt.Errorf("%d attempts: want 1 to %d", o.Attempts, maxAttempts)
	case min(o.ConnectTimeout, o.Stall, o.Timeout, o.Silence, o.CredentialsTimeout) <= 0:
		return errors.New("a time of the bucket is not above 0")
	case o.Keys != nil && (o.Keys.ID == "" || o.Keys.Secret == ""):
		return errors.New("keys need an id and a secret")
	}
	return nil
}

const wantURL = "object: want s3://BUCKET or s3://BUCKET/PREFIX"

// splitURL takes s3://BUCKET/PREFIX apart. The prefix has no slash at its ends.
func splitURL(text string) (bucketName, prefix string, err error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "s3" || u.Host == "":
		return "", "", errors.New(wantURL)
	case u.User != nil:
		return "", "", errors.New(wantURL + ", without credentials: those come from the environment, files or roles")
	case u.RawQuery != "" || u.Fragment != "" || u.Port() != "":
		return "", "", errors.New(wantURL + ", and nothing after that; the server is named by object_endpoint")
	}
	if err := s3utils.CheckValidBucketName(u.Host); err != nil {
		return "", "", fmt.Errorf("object: the bucket's name %q: %w", u.Host, err)
	}
	prefix = strings.Trim(u.Path, "/")
	if len(prefix) > maxPrefixBytes {
		return "", "", fmt.Errorf("object: the prefix has %d bytes, at most %d", len(prefix), maxPrefixBytes)
	}
	for part := range strings.SplitSeq(prefix, "/") {
		if part == "." || part == ".." || part == "" && prefix != "" {
			return "", "", errors.New("object: the prefix has a part that is empty or made of dots")
		}
	}
	if strings.ContainsFunc(prefix, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\ufffd' }) {
		return "", "", errors.New("object: the prefix has characters that are not text")
	}
	return u.Host, prefix, nil
}

// amazon is the endpoint from which the library goes to the region's.
const amazon = "s3.amazonaws.com"

// splitEndpoint returns the endpoint's host and port, and whether it speaks TLS.
func splitEndpoint(text string) (host string, secure bool, err error) {
	const want = "object_endpoint: want http://HOST:PORT or https://HOST:PORT"
	if text == "" {
		return amazon, true, nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "", false, errors.New(want)
	case u.User != nil:
		return "", false, errors.New(want + ", without credentials: those come from the environment, files or roles")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return "", false, errors.New(want + ", and nothing after that")
	}
	return u.Host, u.Scheme == "https", nil
}
