// Package s3mem is an S3 server that keeps its objects in memory, as an [http.Handler]: for
// `kvconnd demo`, which needs a bucket that two daemons share, and for tests.
//
// It knows what an object tier asks of a bucket: PUT and GET with ranges and conditions, HEAD,
// DELETE, the deletion of many objects, ListObjectsV2, and the few requests about buckets that
// clients make. Buckets are named in the path, not in the host. Anything else is answered with 501
// NotImplemented: multipart uploads, copies, chunk-signed bodies, versions, ListObjects of version 1.
//
// It checks NO signatures: whoever reaches its port may read and write. Serve it on a loopback
// address.
package s3mem

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Conditions says how a server treats If-None-Match and If-Match of a PUT.
type Conditions int

const (
	// Honoured is what AWS does: a condition that does not hold is answered with 412.
	Honoured Conditions = iota
	// Ignored is what servers do that don't know them: the object is written.
	Ignored
	// Refused is what some servers do that don't know them: 501 NotImplemented.
	Refused
)

// Options says what a server is. The zero value of a field means its default.
type Options struct {
	// MaxBytes bounds the memory of all objects, names and overheads included. A PUT that would
	// pass it is answered with 507. Default 1 GiB: more than a demo needs.
	MaxBytes int64
	// Conditions is how conditional writes are treated. Default Honoured.
	Conditions Conditions
	// PageKeys bounds the names in one page of a list, and the names of one deletion of many.
	// Default 1000, as on AWS. Tests use less.
	PageKeys int
	// Region is what the server says when it is asked where a bucket is. Default us-east-1.
	Region string
	// Now is the server's clock. Default [time.Now].
	Now func() time.Time
}

const (
	defaultMaxBytes = 1 << 30
	defaultPageKeys = 1000
	defaultRegion   = "us-east-1"
)

// Server is an S3 server. It is safe for concurrent use.
type Server struct {
	opts    Options
	memory  memory
	counts  counters
	request atomic.Uint64
}

// New makes a server that has empty buckets with the given names, of 3 to 63 characters each.
func New(o Options, buckets ...string) *Server {
	o.MaxBytes = cmp.Or(o.MaxBytes, defaultMaxBytes)
	o.PageKeys = cmp.Or(o.PageKeys, defaultPageKeys)
	o.Region = cmp.Or(o.Region, defaultRegion)
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{opts: o, memory: memory{buckets: make(map[string]*bucket), max: o.MaxBytes}}
	for _, name := range buckets {
		_ = s.memory.make(name) // a name that is too short shows as a bucket that is missing
	}
	return s
}

// Counts are requests by kind and bytes of objects since the server was made. A request counts
// when it arrives, whatever its answer.
type Counts struct {
	Get, Head, Put, Delete, List uint64
	// DeleteMany counts requests, not the names in them.
	DeleteMany uint64
	// Bucket counts requests about buckets: is it there, where is it, make it, delete it.
	Bucket uint64
	// Other counts requests that the server does not know.
	Other uint64
	// ReadBytes were sent as answers to GET, WrittenBytes came as bodies of PUT.
	ReadBytes, WrittenBytes uint64
}

// Requests is the number of all requests.
func (c Counts) Requests() uint64 {
	return c.Get + c.Head + c.Put + c.Delete + c.List + c.DeleteMany + c.Bucket + c.Other
}

type counters struct {
	mu sync.Mutex
	Counts
}

func (c *counters) add(count func(*Counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count(&c.Counts)
}

// Counts returns what was asked of the server so far.
func (s *Server) Counts() Counts {
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	return s.counts.Counts
}

// Bytes is the memory that objects take.
func (s *Server) Bytes() int64 { return s.memory.used() }

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Server", "s3mem")
	h.Set("Date", s.opts.Now().UTC().Format(http.TimeFormat))
	h.Set("X-Amz-Request-Id", strconv.FormatUint(s.request.Add(1), 16))
	bucketName, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	query := r.URL.Query()
	var err *apiError
	switch {
	case bucketName == "":
		s.counts.add(func(c *Counts) { c.Other++ })
		err = errNotImplemented("the list of buckets")
	case key == "":
		err = s.bucket(w, r, bucketName, query)
	default:
		err = s.object(w, r, bucketName, key, query)
	}
	if err != nil {
		err.write(w, r)
	}
}

// bucket answers a request about a bucket.
func (s *Server) bucket(w http.ResponseWriter, r *http.Request, name string, query url.Values) *apiError {
	switch {
	case r.Method == http.MethodPost && query.Has("delete"):
		s.counts.add(func(c *Counts) { c.DeleteMany++ })
		return s.deleteMany(w, r, name)
	case r.Method == http.MethodGet && query.Get("list-type") == "2":
		s.counts.add(func(c *Counts) { c.List++ })
		return s.list(w, name, query)
	}
	s.counts.add(func(c *Counts) { c.Bucket++ })
	switch {
	case r.Method == http.MethodGet && query.Has("location"):
		if !s.memory.has(name) {
			return errNoSuchBucket()
		}
		writeXML(w, location{Region: s.opts.Region})
	case r.Method == http.MethodHead && len(query) == 0:
		if !s.memory.has(name) {
			return errNoSuchBucket()
		}
		w.Header().Set("X-Amz-Bucket-Region", s.opts.Region)
	case r.Method == http.MethodPut && len(query) == 0:
		return s.memory.make(name)
	case r.Method == http.MethodDelete && len(query) == 0:
		if err := s.memory.drop(name); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		return errNotImplemented(r.Method + " of a bucket with these parameters")
	}
	return nil
}

// object answers a request about an object.
func (s *Server) object(w http.ResponseWriter, r *http.Request, bucketName, key string, query url.Values) *apiError {
	if len(query) > 0 && !(len(query) == 1 && query.Has("x-id")) { // SDKs name the operation in x-id
		s.counts.add(func(c *Counts) { c.Other++ })
		return errNotImplemented(r.Method + " of an object with parameters")
	}
	switch r.Method {
	case http.MethodGet:
		s.counts.add(func(c *Counts) { c.Get++ })
		return s.get(w, r, bucketName, key)
	case http.MethodHead:
		s.counts.add(func(c *Counts) { c.Head++ })
		return s.get(w, r, bucketName, key)
	case http.MethodPut:
		s.counts.add(func(c *Counts) { c.Put++ })
		return s.put(w, r, bucketName, key)
	case http.MethodDelete:
		s.counts.add(func(c *Counts) { c.Delete++ })
		if err := s.memory.delete(bucketName, key); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent) // the same if there was none
		return nil
	}
	s.counts.add(func(c *Counts) { c.Other++ })
	return errNotImplemented(r.Method + " of an object")
}
