// Package bucket is a bucket of an S3 server as the object tier sees it: four requests, each with a
// deadline, typed errors, retries, a breaker, rates and counters.
//
// Only this package knows the client library. What callers decide by is in the errors: [ErrMissing],
// [ErrCondition] and the others that errors.go lists.
package bucket

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/time/rate"
)

// Client is what the object tier asks of a bucket. Names are below the prefix that the bucket was
// opened with. All methods are safe for concurrent use, return when their context ends, and have
// deadlines of their own beside it.
type Client interface {
	// Get reads an object from an offset: bytes of it, or with 0 all that follows. The error is
	// about the head of the answer; errors of the body come from reading it. The body has to be
	// closed, and ends with the context. A range that begins past the object's end is [ErrRange],
	// one that passes it gives a shorter body.
	Get(ctx context.Context, name string, from, bytes int64) (*Body, error)
	// Put writes an object with one request. data is read from its start, again for each attempt,
	// and not once Put has returned. A condition that doesn't hold is [ErrCondition]; without
	// [Client.Conditional] it is not sent. A repeated request whose first attempt was carried out
	// after all is a success.
	Put(ctx context.Context, name string, data io.ReadSeeker, bytes int64, c Condition) (Meta, error)
	// List returns the objects whose names begin with prefix and come after a name, sorted, at most
	// that many. It returns what it has beside an error.
	List(ctx context.Context, prefix, after string, most int) ([]Meta, error)
	// Delete deletes objects, 1,000 a request where the server can. Objects that are not there are
	// deleted. After an error any of them may be.
	Delete(ctx context.Context, names []string) error
	// Conditional reports whether conditions of a Put are sent, and so hold: [Bucket.Try] found that
	// the server keeps them.
	Conditional() bool
}

// Body is an object, or a range of one, as it arrives. Its Read reports a body that ends early as
// [ErrDamaged].
type Body struct {
	io.ReadCloser
	// Length is the number of bytes that the body has.
	Length int64
	Meta
}

// Meta is what an answer says of an object. Fields that it does not say are zero.
type Meta struct {
	// Name is below the bucket's prefix.
	Name string
	// ETag names this version of the object, without quotation marks.
	ETag string
	// Bytes is the size of the object, not of a range.
	Bytes int64
	// Modified is when the object was written, Now when the server answered: both by its clock, in
	// whole seconds, and good for comparison with each other alone.
	Modified, Now time.Time
}

// Condition is what has to hold for a Put to be carried out. The zero value is no condition.
type Condition struct {
	// Absent wants no object of the name.
	Absent bool
	// ETag wants the object to be this version.
	ETag string
}

// Bucket is a [Client]. [Open] makes one.
type Bucket struct {
	opts        Options
	name        string // of the bucket
	prefix      string // of all names: empty, or with a slash at its end
	core        *minio.Core
	transport   http.RoundTripper
	credentials *source
	breaker     breaker
	pulse       pulse
	clock       clock
	counts      counts
	up, down    *rate.Limiter // nil: no limit
	conditional atomic.Bool
	// single is set when the server turned out not to delete many objects in one request.
	single atomic.Bool
}

var _ Client = (*Bucket)(nil)

// Open makes a client of a bucket. It reads files, and sends no request: whether the bucket is there
// shows at the first one. Errors say which option is wrong, and what to do.
func Open(o Options) (*Bucket, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	at, prefix, err := splitURL(o.URL)
	if err != nil {
		return nil, err
	}
	if prefix != "" {
		prefix += "/"
	}
	b := &Bucket{
		opts: o, name: at, prefix: prefix, transport: o.Transport,
		credentials: newSource(o),
		up:          limiter(o.UploadBytesPerS), down: limiter(o.DownloadBytesPerS),
	}
	if b.transport == nil {
		if b.transport, err = newTransport(o); err != nil {
			return nil, err
		}
	}
	b.pulse = pulse{limit: o.Silence, silent: func() { b.breaker.silence() }}
	b.breaker = breaker{opened: b.logOpened, closed: b.logClosed}
	host, secure, err := splitEndpoint(o.Endpoint)
	if err != nil {
		return nil, err
	}
	lookup := map[string]minio.BucketLookupType{StyleAuto: minio.BucketLookupAuto, StylePath: minio.BucketLookupPath, StyleVirtual: minio.BucketLookupDNS}
	b.core, err = minio.NewCore(host, &minio.Options{
		Creds: credentials.New(&handed{source: b.credentials}), Secure: secure, Region: o.Region,
		BucketLookup: lookup[o.Style], Transport: &wire{b},
		MaxRetries: 1, // retries are counted, bounded and spaced here
	})
	if err != nil {
		return nil, fmt.Errorf("object_endpoint: %w", err)
	}
	// IPv6 is used only where it is asked for, as in other tools: a gateway endpoint, through which
	// transfer costs nothing, may not have it.
	b.core.SetS3EnableDualstack(os.Getenv("AWS_USE_DUALSTACK_ENDPOINT") == "true")
	return b, nil
}

// Close closes connections that are not in use. Requests under way go on.
func (b *Bucket) Close() {
	if c, ok := b.transport.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// String names the bucket and its prefix, for people.
func (b *Bucket) String() string { return "s3://" + b.name + "/" + strings.TrimSuffix(b.prefix, "/") }

// Conditional implements [Client].
func (b *Bucket) Conditional() bool { return b.conditional.Load() }

// Available reports whether requests are sent: the breaker is closed. It costs an atomic load.
func (b *Bucket) Available() bool { return !b.breaker.isOpen.Load() }

// Now is the bucket's clock, by the last answer and the time since then; zero before the first.
func (b *Bucket) Now() time.Time { return b.clock.now() }

// Skew is how far the bucket's clock is ahead of this node's, to a second or two.
func (b *Bucket) Skew() time.Duration { return b.clock.skew() }

func (b *Bucket) full(name string) string { return b.prefix + name }

// limiter is a bucket of tokens that holds a tenth of a second, and at least a chunk.
func limiter(bytesPerS int64) *rate.Limiter {
	if bytesPerS == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytesPerS), int(max(bytesPerS/10, chunkBytes)))
}

// newTransport makes connections as the options say: HTTP/1.1, so that each transfer has a connection
// of its own, and bytes as the server sends them.
func newTransport(o Options) (*http.Transport, error) {
	// Bodies are read in large parts, which bypass the read buffer; but a part smaller than the buffer, such as
	// the header of a record, fills it, and what follows is copied out of it. So it holds no more than such a header.
	const readBufferBytes, writeBufferBytes = 4 << 10, 64 << 10
	roots, err := readRoots(o.CAFile)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: o.ConnectTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		TLSHandshakeTimeout:   o.ConnectTimeout,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		MaxIdleConns:          o.Connections,
		MaxIdleConnsPerHost:   o.Connections,
		IdleConnTimeout:       time.Minute,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
		ReadBufferSize:        readBufferBytes,
		WriteBufferSize:       writeBufferBytes,
	}, nil
}

// readRoots are the roots that servers are verified by: the system's, and those of a file. nil is the
// system's alone.
func readRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("object_ca: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // a system without any
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("object_ca: %s has no certificate in PEM", file)
	}
	return roots, nil
}

func (b *Bucket) logOpened(why error) {
	if why == nil {
		why = fmt.Errorf("%w: no byte came or went for %v", ErrUnavailable, b.opts.Silence)
	}
	b.opts.Logger.Warn("the bucket does not work: its records are not offered until it does", slog.String("bucket", b.String()),
		slog.Any("error", why), slog.String("remedy", Remedy(why)))
}

func (b *Bucket) logClosed(open time.Duration) {
	b.opts.Logger.Info("the bucket works again", slog.String("bucket", b.String()), slog.Duration("after", open.Round(time.Millisecond)))
}
