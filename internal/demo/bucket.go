package demo

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/kvconn/kvconn/internal/s3mem"
)

// bucketServer is the demo's own S3 server.
type bucketServer struct {
	address string
	server  *http.Server
	// down has every request broken off.
	down atomic.Bool
}

const demoBucket = "kvconn-demo"

// startBucket starts a server on a free port of this machine.
func startBucket() (*bucketServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the bucket: %w", err)
	}
	memory := s3mem.New(s3mem.Options{}, demoBucket)
	b := &bucketServer{address: l.Addr().String()}
	b.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.down.Load() {
			panic(http.ErrAbortHandler)
		}
		memory.ServeHTTP(w, r)
	})}
	go func() { _ = b.server.Serve(l) }() // until close
	return b, nil
}

func (b *bucketServer) close() { _ = b.server.Close() }

// flags have a daemon use the bucket, without the waits that make objects large: a demo saves little.
func (b *bucketServer) flags() []string {
	return []string{
		"--object", "s3://" + demoBucket + "/cache", "--object-endpoint", "http://" + b.address, "--object-region", "us-east-1",
		"--object-upload-age", "500ms",
	}
}

// environ are the credentials, in place of the user's own.
func (b *bucketServer) environ() []string {
	return []string{"AWS_ACCESS_KEY_ID=demo", "AWS_SECRET_ACCESS_KEY=demo-secret", "AWS_EC2_METADATA_DISABLED=true"}
}

// isAWS reports whether a variable is one of S3 tools.
func isAWS(name string) bool { return strings.HasPrefix(name, "AWS_") }
