package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kvconn/kvconn/connector"
)

// hashSource is what SGLang's extension that hashes pages needs of the machine
// (sglang/srt/mem_cache/cpp_utils/hash_binding.cpp, 0.5.23): it is compiled when the first prompt comes.
const hashSource = "#include <openssl/sha.h>\nextern \"C\" void f() { SHA256_CTX c; SHA256_Init(&c); }\n"

// The keys of SGLang's --hicache-storage-backend-extra-config that the plugin cannot do without.
var neededKeys = [...]struct {
	name string
	want any
}{
	{"module_path", "kvconn.sglang"}, {"class_name", "KVConnStorage"}, {"interface_v1", 1.0}, {"allocator", "shm"},
	{"hicache_storage_pass_prefix_keys", true},
}

// Thresholds of warnings.
const (
	smallPageTokens = 16
	// mostMemoryShare of the memory may be SGLang's host pools: weights are loaded through host memory too,
	// and kvconnd has its host tier.
	mostMemoryShare = 0.6
	// spareBytes is what SGLang has to find free beside its host pools (pool_host/base.py, 0.5.23), or it does not start.
	spareBytes = 10 << 30
)

// SGLang looks at the command line of an SGLang server, and at the machine that it will run on. It changes
// nothing.
func SGLang(ctx context.Context, m Machine, commandLine []string) []Finding {
	c := parse(commandLine)
	s := &sglang{Machine: m, line: c}
	s.commandLine()
	s.socket(ctx, s.backend())
	s.compiler(ctx)
	s.memory()
	s.layout()
	s.policies()
	s.adapters()
	s.unsupported()
	return s.found
}

type sglang struct {
	Machine
	line  line
	found []Finding
}

func (s *sglang) say(l Level, name, remedy, detail string, args ...any) {
	s.found = append(s.found, Finding{Name: name, Level: l, Detail: fmt.Sprintf(detail, args...), Remedy: remedy})
}

func (s *sglang) ok(name, detail string, args ...any) { s.say(OK, name, "", detail, args...) }

const printed = "take the flags that 'kvconnd config sglang' prints"

func (s *sglang) commandLine() {
	if !s.line.is("enable-hierarchical-cache") && !s.line.is("enable-hicache") {
		s.say(Failure, "flags", printed, "--enable-hierarchical-cache is not there: nothing is cached below the GPU")
		return
	}
	if got := s.line.value("hicache-storage-backend", ""); got != "dynamic" {
		s.say(Failure, "flags", printed, "--hicache-storage-backend is %q: kvconn is a backend of kind dynamic", got)
		return
	}
	s.ok("flags", "the hierarchical cache has a dynamic storage backend")
}

// backend looks at the backend's configuration, and returns the socket that it names.
func (s *sglang) backend() (socket string) {
	const name = "backend"
	text := s.line.value("hicache-storage-backend-extra-config", "")
	var keys map[string]any
	switch {
	case text == "":
		s.say(Failure, name, printed, "--hicache-storage-backend-extra-config is not there")
		return ""
	case strings.HasPrefix(text, "@"):
		s.say(Failure, name, "give the JSON itself on the command line",
			"--hicache-storage-backend-extra-config is a file: SGLang reads \"allocator\" from the flag's text only, so the host pool would not be shared")
		return ""
	case json.Unmarshal([]byte(text), &keys) != nil:
		s.say(Failure, name, "mind the shell's quotes; "+printed, "--hicache-storage-backend-extra-config is no JSON object")
		return ""
	}
	bad := false
	for _, k := range neededKeys {
		if keys[k.name] != k.want {
			want, _ := json.Marshal(k.want)
			s.say(Failure, name, printed, "%q must be %s", k.name, want)
			bad = true
		}
	}
	if !bad {
		s.ok(name, "kvconn's, with shared host memory")
	}
	socket, _ = keys["socket"].(string)
	return socket
}

func (s *sglang) socket(ctx context.Context, path string) {
	const name = "daemon"
	if path == "" {
		s.say(Failure, name, printed, "the backend's configuration has no \"socket\"")
		return
	}
	if err := s.Connect(ctx, path); err != nil {
		s.say(Failure, name, "start 'kvconnd serve' on this node, as the same user or with a socket that this user may open, and mount its directory if SGLang is in a container",
			"%v", err)
		return
	}
	s.ok(name, "it listens on %s", path)
}

// compiler looks at what compiles the page hash. Without it the scheduler ends at the first prompt.
func (s *sglang) compiler(ctx context.Context) {
	const name = "page hash"
	for _, program := range []string{"g++", "ninja"} {
		if _, err := s.Find(program); err != nil {
			s.say(Failure, name, "install "+program+" where SGLang runs, and have it in PATH (Debian: apt-get install g++ ninja-build libssl-dev)",
				"SGLang compiles its page hash when the first prompt comes, and %s is not in PATH: the scheduler would end", program)
			return
		}
	}
	if err := s.Compiles(ctx, "g++", hashSource, "crypto"); err != nil {
		s.say(Failure, name, "install OpenSSL's headers where SGLang runs (Debian: libssl-dev; Red Hat: openssl-devel)",
			"SGLang compiles its page hash when the first prompt comes, and that fails here: %v", err)
		return
	}
	s.ok(name, "it can be compiled, which takes the first prompt some seconds")
}

func (s *sglang) memory() {
	const name = "host memory"
	gb, err := s.line.integer("hicache-size", 0)
	ranks, err2 := s.line.integer("tp-size", 1)
	replicas, err3 := s.line.integer("dp-size", 1)
	if err != nil || err2 != nil || err3 != nil {
		s.say(Failure, name, "mend the flag", "--hicache-size, --tp-size and --dp-size are whole numbers")
		return
	}
	if s.line.is("enable-dp-attention") {
		replicas = 1 // its ranks are those of tensor parallelism
	}
	have := s.MemoryBytes()
	switch wants := float64(gb) * 1e9 * float64(ranks*replicas); {
	case gb == 0:
		s.say(Warning, name, "set --hicache-size; 'kvconnd config sglang' prints one that fits",
			"--hicache-size is not there: SGLang takes a size after the GPU's, up to 80%% of the memory")
	case have == math.MaxInt64:
		s.ok(name, "%.0f GB for %d ranks; the memory of this machine is not known", wants/1e9, ranks*replicas)
	case wants > float64(have):
		s.say(Failure, name, "lower --hicache-size: it is for each rank, and its memory counts for the container", "%.0f GB for %d ranks, and there are %.0f GB", wants/1e9, ranks*replicas, float64(have)/1e9)
	case wants+spareBytes > float64(have):
		s.say(Failure, name, "lower --hicache-size, or give the machine or the container more memory", "%.0f GB for %d ranks, of %.0f GB: SGLang does not start unless %.1f GB are free beside it", wants/1e9, ranks*replicas, float64(have)/1e9, spareBytes/1e9)
	case wants > mostMemoryShare*float64(have):
		s.say(Warning, name, "lower --hicache-size: a buffer for some long prompts is enough", "%.0f GB for %d ranks, of %.0f GB: weights and kvconnd need memory too", wants/1e9, ranks*replicas, float64(have)/1e9)
	default:
		s.ok(name, "%.0f GB for %d ranks, of %.0f GB", wants/1e9, ranks*replicas, float64(have)/1e9)
	}
}

func (s *sglang) layout() {
	const name = "layout"
	layout := s.line.value("hicache-mem-layout", "page_first")
	page, err := s.line.integer("page-size", 1)
	switch {
	case err != nil || page < 1 || page > connector.MaxBlockSize:
		s.say(Failure, name, "set --page-size to 64, say", "--page-size must be 1 to %d tokens", connector.MaxBlockSize)
	case layout != "page_first" && layout != "page_first_direct" && layout != "layer_first" && layout != "page_head":
		s.say(Failure, name, "set --hicache-mem-layout page_first", "--hicache-mem-layout %s is not supported", layout)
	case layout == "layer_first":
		s.say(Warning, name, "set --hicache-mem-layout page_first", "layer_first has two runs of bytes for each layer of a page: pages are copied in small pieces")
	case page < smallPageTokens:
		s.say(Warning, name, "set --page-size to 64, say, and check that the attention backend takes it", "pages of %d tokens are records of their own, and not aligned for direct I/O: each costs a look-up and a read", page)
	default:
		s.ok(name, "%s, pages of %d tokens", layout, page)
	}
}

func (s *sglang) policies() {
	const name = "policies"
	before := len(s.found)
	if got := s.line.value("hicache-write-policy", "write_through"); got != "write_through" {
		s.say(Warning, name, "set --hicache-write-policy write_through", "%s saves a page when it was hit, or leaves host memory: prompts are found later, or not as a whole", got)
	}
	if s.line.value("hicache-storage-prefetch-policy", "timeout") == "wait_complete" {
		s.say(Warning, name, "set --hicache-storage-prefetch-policy timeout", "wait_complete waits for a load as long as it takes")
	}
	if s.line.value("hicache-host-memory-mode", "cache") == "cache" {
		s.say(Warning, name, "set --hicache-host-memory-mode buffer_only, or lower kvconnd's host_bytes", "SGLang and kvconnd both keep pages in host memory")
	}
	if len(s.found) == before {
		s.ok(name, "pages are saved at once, loads have a deadline, and host memory keeps pages once")
	}
}

// adapters looks for those that come at run time. SGLang gives each load an id at random, which is part of its page hashes.
func (s *sglang) adapters() {
	if s.line.is("enable-lora") && s.line.value("lora-paths", "") == "" {
		s.say(Warning, "adapters", "name adapters that are used again in --lora-paths, with their local directories; leave it as it is if short-lived ones are all there are",
			"--enable-lora without --lora-paths: an adapter that is loaded at run time gets a new id at each load, so its pages are found until it is unloaded, never after a restart, and take room in kvconnd until they are evicted")
	}
}

// refusedFlags are those that the plugin refuses (kvconn/sglang/manifest.py), if they are not "off".
var refusedFlags = [...]struct{ flag, why string }{
	{"uno-lora-path", "the adapter of a draft is not told apart by its weights"},
	{"quantization-param-path", "scales in a file are not told apart"},
	{"custom-weight-loader", "weights of a custom loader cannot be told apart"},
	{"decrypted-config-file", "a configuration of its own cannot be told apart"},
	{"decrypted-draft-config-file", "a configuration of its own cannot be told apart"},
	{"weight-cache-mode", "weights that another process keeps need not be those of the files"},
	{"modelopt-checkpoint-restore-path", "a checkpoint beside the model is not told apart by its content"},
	{"quantize-and-serve", "weights that are quantized at each start cannot be told apart"},
	{"forward-hooks", "what hooks do cannot be told apart"},
}

func (s *sglang) unsupported() {
	const name = "support"
	before := len(s.found)
	for _, r := range refusedFlags {
		if v := s.line.value(r.flag, "off"); v != "off" {
			s.say(Failure, name, "leave it out", "--%s: %s, so kvconn keeps nothing of such an engine", r.flag, r.why)
		}
	}
	for _, flag := range []string{"pp-size", "attn-cp-size", "dcp-size"} {
		if n, err := s.line.integer(flag, 1); err != nil || n > 1 {
			s.say(Failure, name, "leave it out", "--%s above 1 is not supported: the engine would not start with the backend", flag)
		}
	}
	if len(s.found) == before {
		s.ok(name, "nothing that kvconn cannot keep apart")
	}
}

// line is a command line: flags by their names without hyphens before, and their values.
type line map[string]string

// aliases are SGLang's short names of flags that are looked at.
var aliases = map[string]string{"tp": "tp-size", "tensor-parallel-size": "tp-size", "dp": "dp-size", "data-parallel-size": "dp-size", "pp": "pp-size", "pipeline-parallel-size": "pp-size"}

// parse reads flags as SGLang does: --name value, or --name=value; the last holds.
func parse(words []string) line {
	l := make(line)
	for i, word := range words {
		name, is := strings.CutPrefix(word, "--")
		if !is {
			continue
		}
		name, value, has := strings.Cut(name, "=")
		if !has && i+1 < len(words) && !strings.HasPrefix(words[i+1], "--") {
			value = words[i+1]
		}
		if full, ok := aliases[name]; ok {
			name = full
		}
		l[name] = value
	}
	return l
}

func (l line) is(name string) bool {
	_, is := l[name]
	return is
}

func (l line) value(name, otherwise string) string {
	if v, is := l[name]; is {
		return v
	}
	return otherwise
}

func (l line) integer(name string, otherwise int) (int, error) {
	v, is := l[name]
	if !is {
		return otherwise, nil
	}
	return strconv.Atoi(v)
}
