package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
)

func TestConfigSGLangPrintsAllThatSGLangNeeds(t *testing.T) {
	const tail = ` --hicache-storage-prefetch-policy timeout --hicache-storage-backend dynamic --hicache-storage-backend-extra-config ` +
		`{"backend_name":"kvconn","module_path":"kvconn.sglang","class_name":"KVConnStorage","interface_v1":1,"allocator":"shm",` +
		`"hicache_storage_pass_prefix_keys":true,"socket":"/run/x.sock"}` + "\n"
	const layout = ` --hicache-mem-layout page_first --hicache-write-policy write_through --hicache-host-memory-mode `
	of := max(1, int(hostmemory.DefaultBytes()/1e9))
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, fmt.Sprintf("--page-size 64 --hicache-size %d%sbuffer_only", of, layout)},
		{[]string{"--ranks", "1000"}, "--page-size 64 --hicache-size 1" + layout + "buffer_only"},
		{[]string{"--host-gb", "30", "--ranks", "8", "--page-size", "128", "--keep-host"}, "--page-size 128 --hicache-size 30" + layout + "cache"},
	} {
		status, out, errs := kvconnd(append([]string{"config", "sglang", "--socket", "/run/x.sock"}, c.args...)...)
		if want := "--enable-hierarchical-cache " + c.want + tail; status != 0 || out != want || errs != "" {
			t.Errorf("%q: status %d, %q, %q; want %q", c.args, status, out, errs, want)
		}
	}
}

func TestConfigSGLangRefusesWhatCannotWork(t *testing.T) {
	for want, args := range map[string][]string{
		"--ranks must":     {"--ranks", "0"},
		"--host-gb must":   {"--host-gb=-1"},
		"--page-size must": {"--page-size", "5000"},
		"take it apart":    {"--socket", "/run/my socket"},
	} {
		status, out, errs := kvconnd(append([]string{"config", "sglang"}, args...)...)
		if status == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%q: status %d, %q, %q", args, status, out, errs)
		}
	}
}

func TestConfigSGLangExplainsEveryFlagAndKey(t *testing.T) {
	_, printed, _ := kvconnd("config", "sglang", "--socket", "/run/x.sock")
	_, help, _ := kvconnd("config", "sglang", "--help")
	for _, word := range strings.FieldsFunc(printed, func(r rune) bool { return strings.ContainsRune(` "{}:,`, r) }) {
		if (strings.HasPrefix(word, "--") || strings.Contains(word, "_")) && !strings.Contains(help, word) {
			t.Errorf("--help does not explain %s", word)
		}
	}
}
