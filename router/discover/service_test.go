package discover

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// apiServer is the part of an API server that has EndpointSlices, in namespaces "ns" and "own". It has TLS and tokens.
type apiServer struct {
	*httptest.Server
	t   *testing.T
	dir string // of a service account

	mu      sync.Mutex
	token   string
	version int
	oldest  int // versions before it are gone
	slices  map[string]map[string]any
	log     []logged
	changed chan struct{} // closed at each change
	fail    int           // status of all answers, if not 0
	lists   int
	watches int
	cut     chan struct{} // closed to end all watches
}

// logged is an event of the log that watches read.
type logged struct {
	version int
	service string
	event   map[string]any
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{t: t, dir: t.TempDir(), version: 100, slices: map[string]map[string]any{}, changed: make(chan struct{}), cut: make(chan struct{})}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	s.write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	s.write("namespace", "own")
	s.rotate("first")
	return s
}

func (s *apiServer) write(name, text string) {
	s.t.Helper()
	write(s.t, filepath.Join(s.dir, name), text)
}

// rotate changes the token of the service account.
func (s *apiServer) rotate(token string) {
	s.t.Helper()
	s.mu.Lock()
	s.token = token
	s.mu.Unlock()
	s.write("token", token+"\n")
}

func (s *apiServer) cluster() Cluster {
	u, err := url.Parse(s.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		s.t.Fatal(err)
	}
	return Cluster{Host: host, Port: port, Dir: s.dir, Pause: 5 * time.Millisecond}
}

// end is an endpoint; state is "" (ready), "starting", "unready", "leaving" or "gone".
func end(address, node, state string) map[string]any {
	c := map[string]any{}
	switch state {
	case "":
		c = map[string]any{"ready": true, "serving": true, "terminating": false}
	case "starting", "unready":
		c = map[string]any{"ready": false, "serving": false, "terminating": false}
	case "leaving":
		c = map[string]any{"ready": false, "serving": true, "terminating": true}
	case "gone":
		c = map[string]any{"ready": false, "serving": false, "terminating": true}
	}
	return map[string]any{"addresses": []string{address}, "conditions": c, "nodeName": node, "targetRef": map[string]any{"kind": "Pod", "uid": "uid " + address}}
}

// put stores a slice; without endpoints it is deleted.
func (s *apiServer) put(service, name string, ends ...map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	kind := "ADDED"
	if s.slices[name] != nil {
		kind = "MODIFIED"
	}
	if ends == nil {
		kind = "DELETED"
	}
	family := "IPv4"
	if strings.HasSuffix(name, "-6") {
		family = "IPv6"
	}
	object := map[string]any{
		"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": family, "endpoints": ends, "service": service,
		"metadata": map[string]any{"name": name, "resourceVersion": strconv.Itoa(s.version), "labels": map[string]any{"kubernetes.io/service-name": service}},
	}
	s.slices[name] = object
	if ends == nil {
		delete(s.slices, name)
	}
	s.log = append(s.log, logged{s.version, service, map[string]any{"type": kind, "object": object}})
	close(s.changed)
	s.changed = make(chan struct{})
}

// set changes the server while nobody asks it.
func (s *apiServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// asked is how many pages of lists, and how many watches were asked for.
func (s *apiServer) asked() (lists, watches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, s.watches
}

// endWatches ends all watches.
func (s *apiServer) endWatches() {
	s.set(func() { close(s.cut); s.cut = make(chan struct{}) })
}

// makesFail ends watches until a try fails: one that was asked for before may begin later.
func (s *apiServer) makesFail(f found) {
	s.t.Helper()
	from := f.Discovery.Stats().Errors
	wait.For(s.t, "a failed try", func() bool { s.endWatches(); return f.Discovery.Stats().Errors > from })
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	namespace, ok := strings.CutPrefix(strings.TrimSuffix(r.URL.Path, "/endpointslices"), "/apis/discovery.k8s.io/v1/namespaces/")
	service, labelled := strings.CutPrefix(r.FormValue("labelSelector"), "kubernetes.io/service-name=")
	s.mu.Lock()
	fail, token := s.fail, s.token
	s.mu.Unlock()
	status := func(code int, text string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "code": code, "message": text})
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer "+token:
		status(http.StatusUnauthorized, "Unauthorized")
	case fail != 0:
		status(fail, "failing")
	case !ok || !labelled || r.Method != http.MethodGet || namespace != "ns" && namespace != "own":
		status(http.StatusForbidden, "endpointslices is forbidden in "+namespace)
	case r.FormValue("watch") == "1":
		s.watch(w, r, service)
	default:
		s.list(w, r, service)
	}
}

// list answers with one slice a page.
func (s *apiServer) list(w http.ResponseWriter, r *http.Request, service string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	var names []string
	for name, object := range s.slices {
		if object["service"] == service {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	at, _ := strconv.Atoi(r.FormValue("continue"))
	meta, items := map[string]any{"resourceVersion": strconv.Itoa(s.version)}, []any{}
	if at < len(names) {
		items = append(items, s.slices[names[at]])
	}
	if at+1 < len(names) {
		meta["continue"] = strconv.Itoa(at + 1)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "EndpointSliceList", "metadata": meta, "items": items})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, service string) {
	from, _ := strconv.Atoi(r.FormValue("resourceVersion"))
	out := json.NewEncoder(w)
	s.mu.Lock()
	s.watches++
	cut := s.cut
	s.mu.Unlock()
	for {
		s.mu.Lock()
		changed, gone := s.changed, from < s.oldest
		var events []map[string]any
		for _, e := range s.log {
			if e.version > from && e.service == service {
				events = append(events, e.event)
			}
		}
		from = max(from, s.version)
		s.mu.Unlock()
		if gone {
			_ = out.Encode(map[string]any{"type": "ERROR", "object": map[string]any{"kind": "Status", "code": 410, "message": "too old resource version"}})
			return
		}
		for _, e := range events {
			_ = out.Encode(e)
		}
		_ = out.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(from)}}})
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-cut:
			return
		case <-changed:
		}
	}
}

// follow follows the service "vllm" in the namespace "ns".
func (s *apiServer) follow(change func(*Source)) found {
	s.t.Helper()
	source := Source{Service: "vllm", Namespace: "ns", Rank: template(s.t, map[string]any{"model": "m", "endpoint": "http://{address}:8000"})}
	if change != nil {
		change(&source)
	}
	return discover(s.t, func(o *Options) { o.Cluster = s.cluster() }, source)
}

func TestTheEndpointsOfAServiceAreRanks(t *testing.T) {
	s := newAPIServer(t)
	s.put("vllm", "vllm-1", end("10.0.0.1", "n1", ""), end("10.0.0.2", "n2", "starting"))
	s.put("vllm", "vllm-2", end("10.0.0.3", "n1", ""))
	s.put("vllm", "vllm-6", map[string]any{"addresses": []string{"fd00::3"}, "targetRef": map[string]any{"uid": "uid 10.0.0.3"}}) // the same pod
	s.put("other", "other-1", end("10.9.9.9", "n1", ""))
	f := s.follow(nil)
	f.wants("http://10.0.0.1:8000", "http://10.0.0.3:8000")
	// One that is not ready for a while keeps what is known of it, one that starts is not there yet.
	s.put("vllm", "vllm-1", end("10.0.0.1", "n1", "unready"), end("10.0.0.2", "n2", ""))
	f.wants("http://10.0.0.1:8000 draining", "http://10.0.0.2:8000", "http://10.0.0.3:8000")
	s.put("vllm", "vllm-1", end("10.0.0.1", "n1", ""), end("10.0.0.2", "n2", "leaving"))
	f.wants("http://10.0.0.1:8000", "http://10.0.0.2:8000 draining", "http://10.0.0.3:8000")
	s.put("vllm", "vllm-1", end("10.0.0.1", "n1", ""), end("10.0.0.2", "n2", "gone"))
	f.wants("http://10.0.0.1:8000", "http://10.0.0.3:8000")
	s.put("vllm", "vllm-2")
	f.wants("http://10.0.0.1:8000", "http://[fd00::3]:8000")
	s.put("vllm", "vllm-6")
	s.put("vllm", "vllm-1")
	f.wants()
	if n, _ := s.asked(); n != 3 { // pages
		t.Errorf("%d requests for lists", n)
	}
}

// Ranks belong to the kvconnd of their machine, wherever that is at the moment.
func TestRanksBelongToTheDaemonOfTheirNode(t *testing.T) {
	s := newAPIServer(t)
	s.put("vllm", "vllm-1", end("10.0.0.1", "n1", ""), end("10.0.0.2", "n1", ""), end("10.0.0.3", "n2", ""))
	s.put("kvconn", "kvconn-1", end("10.1.0.1", "n1", "unready"))
	f := s.follow(func(o *Source) { o.Daemons = "kvconn" })
	f.wants("http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000")
	urls := func() string {
		var list []string
		for _, r := range f.Ranks() {
			list = append(list, strings.TrimPrefix(r.Endpoint, "http://10.0.0.")+" "+r.NodeURL)
		}
		slices.Sort(list)
		return strings.Join(list, ", ")
	}
	want := func(text string) {
		t.Helper()
		wait.For(t, text, func() bool { return urls() == text })
	}
	want("1:8000 http://10.1.0.1:9477, 2:8000 http://10.1.0.1:9477, 3:8000 ")
	s.put("kvconn", "kvconn-1", end("10.1.0.1", "n1", ""), end("10.1.0.2", "n2", ""))
	want("1:8000 http://10.1.0.1:9477, 2:8000 http://10.1.0.1:9477, 3:8000 http://10.1.0.2:9477")
	// A daemon starts again: away for a while, then both, then the new one.
	s.put("kvconn", "kvconn-1", end("10.1.0.2", "n2", ""))
	s.put("vllm", "vllm-2", end("10.0.0.4", "n1", ""))
	want("1:8000 http://10.1.0.1:9477, 2:8000 http://10.1.0.1:9477, 3:8000 http://10.1.0.2:9477, 4:8000 http://10.1.0.1:9477")
	s.put("kvconn", "kvconn-1", end("10.1.0.9", "n1", ""), end("10.1.0.1", "n1", "leaving"), end("10.1.0.2", "n2", ""))
	want("1:8000 http://10.1.0.9:9477, 2:8000 http://10.1.0.9:9477, 3:8000 http://10.1.0.2:9477, 4:8000 http://10.1.0.9:9477")
	wait.For(t, "four ranks, none of them refused", func() bool { s := f.Discovery.Stats(); return s.Refused == 0 && s.Ranks == 4 })
}

// Without the right to see the daemons, engines are still found.
func TestDaemonsThatCannotBeSeenDoNotHideEngines(t *testing.T) {
	s := newAPIServer(t)
	s.put("vllm", "vllm-1", end("10.0.0.1", "n1", ""))
	f := s.follow(func(o *Source) { o.Daemons, o.DaemonsNamespace = "kvconn", "secret" })
	f.wants("http://10.0.0.1:8000")
	f.fails(1)
	wait.For(t, "a source that fails, and why", func() bool {
		s := f.Discovery.Stats()
		return s.Failing == 1 && strings.Contains(s.Why[0], "forbidden in secret")
	})
}

// Whatever happens to the API server and the connections to it, the ranks stay, and what changed meanwhile is seen.
func TestAnAPIServerThatFailsKeepsTheRanks(t *testing.T) {
	s := newAPIServer(t)
	s.put("vllm", "vllm-1", end("10.0.0.1", "n1", ""))
	f := s.follow(nil)
	f.wants("http://10.0.0.1:8000")
	next := 1
	sees := func(what string) {
		t.Helper()
		next++
		s.put("vllm", "vllm-1", end(fmt.Sprintf("10.0.0.%d", next), "n1", ""))
		wait.For(t, what, func() bool { return slices.Equal(f.endpoints(), []string{fmt.Sprintf("http://10.0.0.%d:8000", next)}) })
	}
	// A watch that ends goes on where it was.
	lists, _ := s.asked()
	for range 3 {
		_, watches := s.asked()
		s.endWatches()
		wait.For(t, "another watch", func() bool { _, n := s.asked(); return n > watches })
	}
	if n, _ := s.asked(); n != lists {
		t.Errorf("%d lists for watches that ended in their time", n-lists)
	}
	sees("a change after watches that ended")
	// The version is gone.
	s.set(func() { s.version++; s.oldest = s.version + 1; s.version += 2 })
	s.endWatches()
	sees("a change after a version that is gone")
	// Connections break, the token changes, the server refuses.
	s.CloseClientConnections()
	sees("a change after broken connections")
	s.rotate("second")
	s.endWatches()
	sees("a change after another token")
	for _, code := range []int{http.StatusForbidden, http.StatusInternalServerError, http.StatusTooManyRequests, http.StatusFound, http.StatusGone} {
		s.set(func() { s.fail = code })
		if code == http.StatusGone { // which is no failure
			s.endWatches()
		} else {
			s.makesFail(f)
		}
		f.wants(fmt.Sprintf("http://10.0.0.%d:8000", next))
		s.set(func() { s.fail = 0 })
		sees(fmt.Sprintf("a change after status %d", code))
	}
	wait.For(t, "no failing source", func() bool { return f.Discovery.Stats().Failing == 0 })
	// Files of the service account that are away for a moment.
	for _, name := range []string{"token", "ca.crt"} {
		b, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
		s.makesFail(f)
		s.write(name, string(b))
		sees("a change after a lost " + name)
	}
}

// A server that never knows a version is no server that works.
func TestAVersionThatIsAlwaysGoneIsAnError(t *testing.T) {
	s := newAPIServer(t)
	s.set(func() { s.fail = http.StatusGone })
	f := s.follow(nil)
	f.fails(2)
	wait.For(t, "a source that fails, and why", func() bool { s := f.Discovery.Stats(); return s.Failing == 1 && strings.Contains(s.Why[0], "version") })
}

// Whatever an API server sends, memory is bounded.
func TestSlicesAreBounded(t *testing.T) {
	event := func(name string, size int) []byte {
		return fmt.Appendf(nil, `{"type":"ADDED","object":{"addressType":"IPv4","metadata":{"name":%q,"resourceVersion":"2"},"endpoints":[{"addresses":[%q]}]}}`,
			name, strings.Repeat("x", size))
	}
	f := follower{slices: map[string]endpointSlice{}, version: "1"}
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		_, err = f.event(event(fmt.Sprint("s", n), 1<<20))
	}
	if err == nil || n > maxTotalBytes>>20+1 || f.bytes > maxTotalBytes {
		t.Errorf("%d slices of a MiB, %d bytes: %v", n, f.bytes, err)
	}
	// One that changes counts once, one that goes not at all.
	for range 3 {
		if _, err := f.event(event("s0", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n - 1 {
		if _, err := f.event(fmt.Appendf(nil, `{"type":"DELETED","object":{"metadata":{"name":"s%d"}}}`, i)); err != nil {
			t.Fatal(err)
		}
	}
	if f.bytes != 0 || len(f.slices) != 0 {
		t.Errorf("%d bytes of %d slices", f.bytes, len(f.slices))
	}
	// A list that never ends, of empty pages and of pages with a large slice each.
	for _, size := range []int{0, 4 << 20} {
		s := newAPIServer(t)
		var pages atomic.Int64
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			items := ""
			if n := pages.Add(1); size > 0 {
				items = fmt.Sprintf(`{"metadata":{"name":"s%d"},"filler":%q}`, n, strings.Repeat("x", size))
			}
			_, _ = fmt.Fprintf(w, `{"metadata":{"continue":"more","resourceVersion":"1"},"items":[%s]}`, items)
		})
		cluster := s.cluster()
		client, err := cluster.client()
		if err != nil {
			t.Fatal(err)
		}
		f := follower{cluster: &cluster, namespace: "ns", service: "vllm"}
		if err := f.list(t.Context(), client); err == nil || f.version != "" || pages.Load() > maxPages || size > 0 && pages.Load() > int64(maxTotalBytes/size+1) {
			t.Errorf("%d pages: %v", pages.Load(), err)
		}
		client.CloseIdleConnections()
	}
}

// A server with another certificate gets no token.
func TestAServerThatIsNotTheClustersGetsNoToken(t *testing.T) {
	s := newAPIServer(t)
	var asked atomic.Bool
	s.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) })
	// A certificate for another name: that of the test's servers covers 127.0.0.1 and example.com.
	f := discover(t, func(o *Options) {
		o.Cluster = s.cluster()
		o.Cluster.Host = "localhost"
	}, Source{Service: "vllm", Rank: template(t, map[string]any{"model": "m", "endpoint": "http://{address}:8000"})})
	f.fails(2)
	if asked.Load() {
		t.Error("a request was sent")
	}
	wait.For(t, "why it fails", func() bool {
		s := f.Discovery.Stats()
		return strings.Contains(strings.Join(s.Why, " "), "certificate")
	})
}

// Bytes that no API server sends end the watch, and change nothing.
func TestEventsThatAreNoneAreRefused(t *testing.T) {
	for _, line := range []string{
		"", "{", "[]", `{"type":"ADDED"}`, `{"type":"ADDED","object":[]}`, `{"type":"SURPRISE","object":{}}`, `{"type":"ERROR","object":{"code":500}}`, `{"type":"ERROR"}`,
	} {
		f := follower{slices: map[string]endpointSlice{"a": {}}, version: "1"}
		if different, err := f.event([]byte(line)); err == nil || different || f.version != "1" || len(f.slices) != 1 {
			t.Errorf("%q: %v %v %+v", line, different, err, f)
		}
	}
	if list := addresses(map[string]endpointSlice{"a": {AddressType: "FQDN", Endpoints: []endpoint{{Addresses: []string{"h"}}}},
		"b": {AddressType: "IPv4", Endpoints: []endpoint{{}, {Addresses: []string{"not an address"}}}}}); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}
