package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
)

func TestConfigVLLMWithTierPrintsAllThatVLLMNeeds(t *testing.T) {
	const head = `{"kv_connector":"KVConnTieringConnector","kv_connector_module_path":"kvconn.vllm.tier","kv_role":"kv_both",` +
		`"kv_load_failure_policy":"recompute","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec",`
	const tail = `,"secondary_tiers":[{"type":"KVConnTier","module_path":"kvconn.vllm.tier","socket":"/run/x.sock"}]}}` + "\n"
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, fmt.Sprintf(`"cpu_bytes_to_use":%d,"blocks_per_chunk":8,"offload_prompt_only":false,"canonical_layout":false`, hostmemory.DefaultBytes())},
		{
			[]string{"--region-bytes", "2GiB", "--blocks-per-chunk", "4", "--canonical"},
			`"cpu_bytes_to_use":2147483648,"blocks_per_chunk":4,"offload_prompt_only":false,"canonical_layout":true`,
		},
	} {
		status, out, errs := kvconnd(append([]string{"config", "vllm", "--tier", "--socket", "/run/x.sock"}, c.args...)...)
		if want := head + c.want + tail; status != 0 || out != want || errs != "" {
			t.Errorf("%q: status %d, %q, %q; want %q", c.args, status, out, errs, want)
		}
	}
}

func TestConfigVLLMRefusesFlagsThatNeedTheTier(t *testing.T) {
	for _, args := range [][]string{{"--region-bytes", "1GiB"}, {"--blocks-per-chunk", "8"}, {"--canonical"}} {
		status, out, errs := kvconnd(append([]string{"config", "vllm"}, args...)...)
		if status == 0 || out != "" || !strings.Contains(errs, "need --tier") {
			t.Errorf("%q: status %d, %q, %q", args, status, out, errs)
		}
	}
}

func TestConfigVLLMExplainsEveryKeyThatItPrints(t *testing.T) {
	_, printed, _ := kvconnd("config", "vllm", "--tier", "--socket", "/run/x.sock")
	_, help, _ := kvconnd("config", "vllm", "--help")
	for _, key := range strings.Split(printed, `"`) {
		switch key {
		case "kv_role", "kv_load_failure_policy", "kv_connector_extra_config", "type", "module_path":
			continue // vLLM's own, and the same in both ways
		}
		if strings.Contains(key, "_") && !strings.Contains(key, "kv_both") && !strings.Contains(help, key) {
			t.Errorf("--help does not explain %s", key)
		}
	}
}
