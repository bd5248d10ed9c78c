package doctor

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fake is a machine that has everything but what a test takes away.
type fake struct {
	lacks      string // a program
	noHeader   bool
	bytes      int64
	refuses    bool
	compiled   string
	connected  string
	compiledBy string
}

func (f *fake) Find(program string) (string, error) {
	if program == f.lacks {
		return "", exec.ErrNotFound
	}
	return "/usr/bin/" + program, nil
}

func (f *fake) Compiles(_ context.Context, compiler, source, library string) error {
	f.compiledBy, f.compiled = compiler, source+library
	if f.noHeader {
		return errors.New("exit status 1: openssl/sha.h: No such file")
	}
	return nil
}

func (f *fake) MemoryBytes() int64 { return f.bytes }

func (f *fake) Connect(_ context.Context, socket string) error {
	f.connected = socket
	if f.refuses {
		return errors.New("permission denied")
	}
	return nil
}

// good is what `kvconnd config sglang` prints.
const good = `--model-path M --enable-hierarchical-cache --page-size 64 --hicache-size 16 --hicache-mem-layout page_first ` +
	`--hicache-write-policy write_through --hicache-host-memory-mode buffer_only --hicache-storage-prefetch-policy timeout ` +
	`--hicache-storage-backend dynamic --hicache-storage-backend-extra-config ` + goodBackend

const goodBackend = `{"backend_name":"kvconn","module_path":"kvconn.sglang","class_name":"KVConnStorage","interface_v1":1,"allocator":"shm",` +
	`"hicache_storage_pass_prefix_keys":true,"socket":"/run/x.sock"}`

func look(t *testing.T, f *fake, commandLine string) []Finding {
	t.Helper()
	return SGLang(t.Context(), f, strings.Fields(commandLine))
}

func TestSGLangAsPrintedIsWell(t *testing.T) {
	f := &fake{bytes: 100e9}
	for _, found := range look(t, f, good) {
		if found.Level != OK || found.Remedy != "" || found.Detail == "" {
			t.Errorf("%+v", found)
		}
	}
	if f.connected != "/run/x.sock" || f.compiledBy != "g++" || !strings.Contains(f.compiled, "openssl/sha.h") {
		t.Errorf("%+v", f)
	}
}

func TestSGLangSaysWhatToDo(t *testing.T) {
	change := func(old, now string) string { return strings.Replace(good, old, now, 1) }
	for name, c := range map[string]struct {
		f    fake
		line string
		at   string
		want Level
	}{
		"nothing":            {line: "", at: "flags", want: Failure},
		"file backend":       {line: change("-backend dynamic", "-backend file"), at: "flags", want: Failure},
		"no configuration":   {line: strings.TrimSuffix(good, "--hicache-storage-backend-extra-config "+goodBackend), at: "backend", want: Failure},
		"a file of it":       {line: change(goodBackend, "@conf.json"), at: "backend", want: Failure},
		"quotes lost":        {line: change(goodBackend, "{socket:x}"), at: "backend", want: Failure},
		"no allocator":       {line: change(`"allocator":"shm",`, ""), at: "backend", want: Failure},
		"slow interface":     {line: change(`"interface_v1":1,`, ""), at: "backend", want: Failure},
		"no socket":          {line: change(`,"socket":"/run/x.sock"`, ""), at: "daemon", want: Failure},
		"no daemon":          {f: fake{refuses: true}, line: good, at: "daemon", want: Failure},
		"no compiler":        {f: fake{lacks: "g++"}, line: good, at: "page hash", want: Failure},
		"no ninja":           {f: fake{lacks: "ninja"}, line: good, at: "page hash", want: Failure},
		"no headers":         {f: fake{noHeader: true}, line: good, at: "page hash", want: Failure},
		"automatic size":     {line: change("--hicache-size 16", ""), at: "host memory", want: Warning},
		"no number":          {line: change("--hicache-size 16", "--hicache-size=much"), at: "host memory", want: Failure},
		"more than there is": {line: good + " --tp 8", at: "host memory", want: Failure},
		"much of it":         {line: good + " --dp-size=5", at: "host memory", want: Warning},
		"nothing to spare":   {line: good + " --dp-size 6", at: "host memory", want: Failure},
		"attention ranks":    {line: good + " --tp 4 --dp-size 4 --enable-dp-attention", at: "host memory", want: Warning},
		"layers first":       {line: change("page_first", "layer_first"), at: "layout", want: Warning},
		"split":              {line: change("page_first", "page_first_kv_split"), at: "layout", want: Failure},
		"small pages":        {line: change("--page-size 64", "--page-size 1"), at: "layout", want: Warning},
		"huge pages":         {line: change("--page-size 64", "--page-size 8192"), at: "layout", want: Failure},
		"saved late":         {line: change("write_through", "write_back"), at: "policies", want: Warning},
		"waits":              {line: change("timeout", "wait_complete"), at: "policies", want: Warning},
		"two copies":         {line: change("buffer_only", "cache"), at: "policies", want: Warning},
		"draft's adapter":    {line: good + " --uno-lora-path /x", at: "support", want: Failure},
		"weights of others":  {line: good + " --weight-cache-mode daemon", at: "support", want: Failure},
		"weights of its own": {line: good + " --weight-cache-mode off", at: "support", want: OK},
		"quantized at start": {line: good + " --quantize-and-serve", at: "support", want: Failure},
		"adapters":           {line: good + " --lora-paths a=/x", at: "support", want: OK},
		"adapters later":     {line: good + " --enable-lora --max-lora-rank 16", at: "adapters", want: Warning},
		"adapters, no paths": {line: good + " --enable-lora --lora-paths", at: "adapters", want: Warning},
		"pipeline":           {line: good + " --pipeline-parallel-size 2", at: "support", want: Failure},
	} {
		t.Run(name, func(t *testing.T) {
			c.f.bytes = 100e9
			for _, found := range look(t, &c.f, c.line) {
				if found.Level != OK && found.Remedy == "" {
					t.Errorf("nothing to do: %+v", found)
				}
				if found.Name == c.at && found.Level == c.want {
					return
				}
			}
			t.Errorf("no %v of %s: %+v", c.want, c.at, look(t, &c.f, c.line))
		})
	}
}

func TestSGLangKnowsAdaptersThatAreNamed(t *testing.T) {
	for _, named := range []string{"--lora-paths a=/x", "--enable-lora --lora-paths a=/x b=/y", "--lora-paths=a=/x --enable-lora"} {
		for _, found := range look(t, &fake{bytes: 100e9}, good+" "+named) {
			if found.Level != OK {
				t.Errorf("%s: %+v", named, found)
			}
		}
	}
}

func TestThisMachine(t *testing.T) {
	var m ThisMachine
	if m.MemoryBytes() < 1<<20 {
		t.Errorf("%d bytes of memory", m.MemoryBytes())
	}
	if err := m.Compiles(t.Context(), "no-such-compiler", hashSource, "crypto"); err == nil {
		t.Error("compiled by nothing")
	}
	if compiler, err := m.Find("g++"); err == nil {
		if err := m.Compiles(t.Context(), compiler, "int f() { return 1; }", "c"); err != nil {
			t.Error(err)
		}
		if err := m.Compiles(t.Context(), compiler, "#include <no/such/header.h>\n", "c"); err == nil || !strings.Contains(err.Error(), "no/such/header.h") {
			t.Errorf("it does not say what lacks: %v", err)
		}
	}
	path := filepath.Join(t.TempDir(), "s")
	if err := m.Connect(t.Context(), path); err == nil {
		t.Error("connected to nothing")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := m.Connect(t.Context(), path); err != nil {
		t.Error(err)
	}
}
