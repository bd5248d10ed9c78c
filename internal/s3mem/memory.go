package s3mem

import (
	"slices"
	"sync"
	"time"
)

const (
	// overheadBytes is what an object takes beside its bytes and its name, about.
	overheadBytes = 256
	// maxBuckets is the number of buckets that AWS gives an account unasked.
	maxBuckets = 100
	// maxKeyBytes is S3's bound on an object's name.
	maxKeyBytes = 1024
)

// object is one object. It is never changed: a PUT makes another one.
type object struct {
	data     []byte
	etag     string // with its quotation marks
	modified time.Time
}

func (o *object) cost(key string) int64 { return int64(len(o.data)+len(key)) + overheadBytes }

type bucket struct {
	objects map[string]*object
	keys    []string // sorted
}

// memory is what the server keeps. It is safe for concurrent use.
type memory struct {
	max     int64
	mu      sync.RWMutex
	buckets map[string]*bucket
	bytes   int64 // of objects, and reserved for bodies that are being read
}

func (m *memory) used() int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.bytes
}

func (m *memory) has(name string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.buckets[name] != nil
}

func (m *memory) make(name string) *apiError {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.buckets[name] != nil:
		return errBucketExists()
	case len(name) < 3 || len(name) > 63:
		return errBucketName()
	case len(m.buckets) == maxBuckets:
		return errTooManyBuckets()
	}
	m.buckets[name] = &bucket{objects: make(map[string]*object)}
	return nil
}

func (m *memory) drop(name string) *apiError {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.buckets[name]
	switch {
	case b == nil:
		return errNoSuchBucket()
	case len(b.keys) > 0:
		return errBucketNotEmpty()
	}
	delete(m.buckets, name)
	return nil
}

// reserve takes memory for an object before its body is read. It reports whether there is any.
func (m *memory) reserve(n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > m.max-m.bytes {
		return false
	}
	m.bytes += n
	return true
}

func (m *memory) release(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes -= n
}

// get returns an object.
func (m *memory) get(name, key string) (*object, *apiError) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	b := m.buckets[name]
	if b == nil {
		return nil, errNoSuchBucket()
	}
	o := b.objects[key]
	if o == nil {
		return nil, errNoSuchKey(key)
	}
	return o, nil
}

// put stores an object whose memory is reserved, if the object that is there now, or nil, is one
// that allowed accepts: both in one step, as S3 does.
func (m *memory) put(name, key string, o *object, allowed func(now *object) *apiError) *apiError {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.buckets[name]
	if b == nil {
		return errNoSuchBucket()
	}
	old := b.objects[key]
	if err := allowed(old); err != nil {
		return err
	}
	b.objects[key] = o
	if old != nil {
		m.bytes -= old.cost(key)
		return nil
	}
	at, _ := slices.BinarySearch(b.keys, key)
	b.keys = slices.Insert(b.keys, at, key)
	return nil
}

// delete deletes an object, if it is there.
func (m *memory) delete(name, key string) *apiError {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.buckets[name]
	if b == nil {
		return errNoSuchBucket()
	}
	o := b.objects[key]
	if o == nil {
		return nil
	}
	m.bytes -= o.cost(key)
	delete(b.objects, key)
	at, _ := slices.BinarySearch(b.keys, key)
	b.keys = slices.Delete(b.keys, at, at+1)
	return nil
}
