package configure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
)

// vllmCmd is `kvconnd config vllm`.
type vllmCmd struct {
	engineSocket
	vllmSettings
}

// vllmSettings are the flags that decide about what vLLM is configured with.
type vllmSettings struct {
	Tier           bool         `name:"tier" help:"Go through vLLM's own offloading, which copies between GPU and host memory. For GPUs."`
	RegionBytes    config.Bytes `name:"region-bytes" placeholder:"SIZE" help:"With --tier: host memory that vLLM takes, of all its ranks together (cpu_bytes_to_use). Default: an eighth of the memory, 512 MiB to 16 GiB."`
	BlocksPerChunk int          `name:"blocks-per-chunk" placeholder:"N" help:"With --tier: vLLM's blocks that are kept as one (blocks_per_chunk). Default: 8."`
	Canonical      bool         `name:"canonical" help:"With --tier: one cache for all tensor-parallel sizes (canonical_layout)."`
}

// defaultBlocksPerChunk makes chunks of 128 tokens out of vLLM's blocks of 16. Shorter ones cost its
// scheduler time with each look-up, longer ones cost hits at the end of a prompt.
const defaultBlocksPerChunk = 8

// Help is shown below the command's summary.
func (*vllmCmd) Help() string {
	return `Without --tier kvconnd reaches vLLM's KV memory itself: that of CPU engines.

With --tier vLLM (0.31 or newer) copies between GPU and a region of host memory, and kvconnd
between that region and its own tiers. The keys that are printed then:

  kv_connector, kv_connector_module_path   vLLM's OffloadingConnector, with what its tier has to know
  spec_name                   vLLM's offloading with tiers
  cpu_bytes_to_use            size of the region, of all ranks together. It lies in /dev/shm and
                              must fit there. Two long prompts should fit into a half of it.
  blocks_per_chunk            blocks of vLLM that are one block here. A chunk has at most 4,096
                              tokens and 64 MiB, of all ranks together.
  offload_prompt_only         false: what is decoded is kept too, for the next turn
  canonical_layout            rows have whole heads in order: engines with other numbers of
                              tensor-parallel ranks share the cache. vLLM refuses to start with it
                              if a layer's memory can't be ordered so.
  secondary_tiers             kvconnd, by its socket. Further settings of this entry: timeout, the
                              seconds that a call may take (1); digest_cache, where digests of
                              weights are kept (~/.cache/kvconn/digests)

docs/vllm.md says which way to take.`
}

// Validate reports flags that need --tier.
func (c *vllmSettings) Validate() error {
	if !c.Tier && (c.RegionBytes != 0 || c.BlocksPerChunk != 0 || c.Canonical) {
		return errors.New("--region-bytes, --blocks-per-chunk and --canonical need --tier")
	}
	if c.BlocksPerChunk < 0 {
		return errors.New("--blocks-per-chunk must be positive")
	}
	return nil
}

// vllmConfig is vLLM's KVTransferConfig (vllm/config/kv_transfer.py, 0.32).
type vllmConfig struct {
	Connector   string `json:"kv_connector"`
	ModulePath  string `json:"kv_connector_module_path"`
	Role        string `json:"kv_role"`
	LoadFailure string `json:"kv_load_failure_policy"`
	Extra       any    `json:"kv_connector_extra_config"`
}

// vllmOffloading are the settings of vLLM's TieringOffloadingSpec (vllm/v1/kv_offload/tiering/spec.py).
type vllmOffloading struct {
	Spec           string     `json:"spec_name"`
	RegionBytes    int64      `json:"cpu_bytes_to_use"`
	BlocksPerChunk int        `json:"blocks_per_chunk"`
	PromptOnly     bool       `json:"offload_prompt_only"`
	Canonical      bool       `json:"canonical_layout"`
	Tiers          []vllmTier `json:"secondary_tiers"`
}

type vllmTier struct {
	Type       string `json:"type"`
	ModulePath string `json:"module_path"`
	Socket     string `json:"socket"`
}

// Run prints the configuration and nothing else.
func (c *vllmCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	socket, err := c.path(ctx, command, resolver, std)
	if err != nil {
		return err
	}
	b, err := c.json(socket)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.Out, "%s\n", b)
	return err
}

// json is the value of --kv-transfer-config.
func (c *vllmSettings) json(socket string) ([]byte, error) {
	// vLLM's default policy ends a request whose load failed; a cache must cost hits only.
	printed := vllmConfig{Role: "kv_both", LoadFailure: "recompute"}
	if c.Tier {
		printed.Connector, printed.ModulePath = "KVConnTieringConnector", "kvconn.vllm.tier"
		printed.Extra = c.offloading(socket)
	} else {
		printed.Connector, printed.ModulePath = "KVConnConnector", "kvconn.vllm"
		printed.Extra = map[string]string{"socket": socket}
	}
	return json.Marshal(printed)
}

func (c *vllmSettings) offloading(socket string) vllmOffloading {
	o := vllmOffloading{
		Spec: "TieringOffloadingSpec", RegionBytes: int64(c.RegionBytes), BlocksPerChunk: c.BlocksPerChunk, Canonical: c.Canonical,
		Tiers: []vllmTier{{Type: "KVConnTier", ModulePath: "kvconn.vllm.tier", Socket: socket}},
	}
	if o.RegionBytes == 0 {
		o.RegionBytes = hostmemory.DefaultBytes()
	}
	if o.BlocksPerChunk == 0 {
		o.BlocksPerChunk = defaultBlocksPerChunk
	}
	return o
}
