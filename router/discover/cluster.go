package discover

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Cluster is how the API server of Kubernetes is reached from a pod.
type Cluster struct {
	// Host and Port are the API server's; default KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which every pod has.
	Host, Port string
	// Dir has the files token, ca.crt and namespace of the pod's service account. They are read again for each
	// connection, as they change.
	Dir string
	// Pause is the time after the first failure; it doubles up to a minute. Default 1 s.
	Pause time.Duration
}

// EnsureDefaults fills in what is not set.
func (c *Cluster) EnsureDefaults() {
	c.Host = cmp.Or(c.Host, os.Getenv("KUBERNETES_SERVICE_HOST"))
	c.Port = cmp.Or(c.Port, os.Getenv("KUBERNETES_SERVICE_PORT"), "443")
	c.Dir = cmp.Or(c.Dir, "/var/run/secrets/kubernetes.io/serviceaccount")
	c.Pause = cmp.Or(c.Pause, time.Second)
}

// Validate reports the first thing that cannot work.
func (c *Cluster) Validate() error {
	if c.Host == "" {
		return errors.New("a service is followed from a pod of the cluster: KUBERNETES_SERVICE_HOST is not set")
	}
	return nil
}

// namespace is the pod's own.
func (c *Cluster) namespace() (string, error) {
	b, err := os.ReadFile(filepath.Join(c.Dir, "namespace"))
	name := strings.TrimSpace(string(b))
	if err == nil && name == "" {
		err = errors.New("the file is empty")
	}
	if err != nil {
		return "", fmt.Errorf("namespace of this pod: %w", err)
	}
	return name, nil
}

const (
	// watchTime is how long a watch lasts; the API server ends it. It bounds how long a connection that broke without a
	// sign goes unnoticed.
	watchTime = 4 * time.Minute
	// requestTime bounds a list.
	requestTime = time.Minute
	// maxListBytes bounds one page of a list, maxEventBytes one event, maxErrorBytes what is read of an error.
	maxListBytes  = 32 << 20
	maxEventBytes = 4 << 20
	maxErrorBytes = 4 << 10
	pageSize      = "500"
)

// errExpired says that the version that a list or watch goes on from is gone: everything has to be listed again.
var errExpired = errors.New("the API server knows the version no more")

// client returns a client that trusts the API server's present certificate authority.
func (c *Cluster) client() (*http.Client, error) {
	pem, err := os.ReadFile(filepath.Join(c.Dir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("certificate authority of the cluster: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(c.Dir, "ca.crt"))
	}
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		},
		// The token is for the API server alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// get asks for the EndpointSlices of a service. The caller closes the body.
func (c *Cluster) get(ctx context.Context, client *http.Client, namespace, service string, query url.Values) (io.ReadCloser, error) {
	token, err := os.ReadFile(filepath.Join(c.Dir, "token"))
	if err != nil {
		return nil, fmt.Errorf("token of the service account: %w", err)
	}
	query.Set("labelSelector", "kubernetes.io/service-name="+service)
	u := url.URL{
		Scheme: "https", Host: net.JoinHostPort(c.Host, c.Port), RawQuery: query.Encode(),
		Path: "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices",
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(token)))
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusGone {
		return nil, errExpired
	}
	var status struct{ Message string }
	_ = json.NewDecoder(io.LimitReader(resp.Body, maxErrorBytes)).Decode(&status) // the status says enough
	return nil, fmt.Errorf("API server: %s: %.512q", resp.Status, status.Message)
}
