package objectbench

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/kvconn/kvconn/store/object/bucket"
)

// raw is the client library alone: what the bucket gives without verification, retries, limits
// or counts.
type raw struct {
	core           *minio.Core
	transport      *http.Transport
	bucket, prefix string
}

// newRaw makes a client from options that [bucket.Open] took.
func newRaw(o *bucket.Options, connections int) (*raw, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, err
	}
	secure, host := true, "s3.amazonaws.com"
	if o.Endpoint != "" {
		e, err := url.Parse(o.Endpoint)
		if err != nil {
			return nil, err
		}
		secure, host = e.Scheme == "https", e.Host
	}
	roots, err := roots(o.CAFile)
	if err != nil {
		return nil, err
	}
	const readBufferBytes, writeBufferBytes = 4 << 10, 64 << 10 // as in package bucket
	r := &raw{bucket: u.Host, prefix: strings.Trim(u.Path, "/") + "/", transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		MaxIdleConns: connections, MaxIdleConnsPerHost: connections, DisableCompression: true,
		ReadBufferSize: readBufferBytes, WriteBufferSize: writeBufferBytes,
	}}
	lookup := map[string]minio.BucketLookupType{bucket.StylePath: minio.BucketLookupPath, bucket.StyleVirtual: minio.BucketLookupDNS}
	r.core, err = minio.NewCore(host, &minio.Options{
		Creds: keys(o.Keys), Secure: secure, Region: o.Region, BucketLookup: lookup[o.Style], Transport: r.transport, MaxRetries: 1,
	})
	return r, err
}

func keys(k *bucket.Keys) *credentials.Credentials {
	if k != nil {
		return credentials.NewStaticV4(k.ID, k.Secret, k.Session)
	}
	return credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{}})
}

func roots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	pool.AppendCertsFromPEM(pem)
	return pool, nil
}

func (r *raw) close() { r.transport.CloseIdleConnections() }

// get reads a range into b.
func (r *raw) get(ctx context.Context, name string, from int64, b []byte) error {
	var o minio.GetObjectOptions
	if err := o.SetRange(from, from+int64(len(b))-1); err != nil {
		return err
	}
	body, _, _, err := r.core.GetObject(ctx, r.bucket, r.prefix+name, o)
	if err != nil {
		return fmt.Errorf("raw GET: %w", err)
	}
	defer func() { _ = body.Close() }()
	if _, err := io.ReadFull(body, b); err != nil {
		return fmt.Errorf("raw GET: %w", err)
	}
	return nil
}

// put writes an object.
func (r *raw) put(ctx context.Context, name string, b []byte) error {
	_, err := r.core.PutObject(ctx, r.bucket, r.prefix+name, bytes.NewReader(b), int64(len(b)), "", "", minio.PutObjectOptions{DisableContentSha256: true})
	if err != nil {
		return fmt.Errorf("raw PUT: %w", err)
	}
	return nil
}
