package configure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
)

// sglangCmd is `kvconnd config sglang`.
type sglangCmd struct {
	engineSocket
	Ranks    int  `name:"ranks" default:"1" placeholder:"N" help:"Ranks of all engines on this node, which share its memory (default 1)."`
	HostGB   int  `name:"host-gb" placeholder:"N" help:"Host memory that SGLang takes for each rank, in GB (--hicache-size). Default: an eighth of the memory, at most 16 GB, divided by the ranks."`
	PageSize int  `name:"page-size" default:"64" placeholder:"N" help:"Tokens of a page, the unit that is stored (default 64)."`
	KeepHost bool `name:"keep-host" help:"Let SGLang keep hot pages in its host memory too (--hicache-host-memory-mode cache): fewer copies, and memory taken twice."`
}

// Help is shown below the command's summary.
func (*sglangCmd) Help() string {
	return `The flags go on SGLang's command line as they are, on one line without spaces in any of them:

  python -m sglang.launch_server --model-path MODEL $(kvconnd config sglang)

Install kvconn's Python package in SGLang's environment first: pip install integration/python,
from a checkout of kvconn.

What is printed:

  --enable-hierarchical-cache        SGLang's cache below the GPU
  --page-size                        tokens of a page. Only whole pages are stored. Engines with another
                                     size do not share.
  --hicache-size                     GB of host memory for each rank. All that is loaded and saved goes
                                     through it: some long prompts should fit in.
  --hicache-mem-layout page_first    a page lies in two runs of bytes, not two for each layer
  --hicache-write-policy write_through
                                     every new page is saved at once
  --hicache-host-memory-mode buffer_only
                                     SGLang's host memory is a buffer only. Host memory that keeps pages
                                     is then kvconnd's, once for all engines of the node.
  --hicache-storage-prefetch-policy timeout
                                     a load that takes too long is computed
  --hicache-storage-backend dynamic  a backend that is not SGLang's own:
  --hicache-storage-backend-extra-config
      backend_name, module_path, class_name
                                     kvconn's
      interface_v1                   pages go by their place, and are not copied by Python
      allocator                      shm: host memory that kvconnd can map
      hicache_storage_pass_prefix_keys
                                     a page's place in its prompt is passed
      socket                         kvconnd's. Further settings here: deadline, the seconds that a
                                     call may take (0.8); digest_cache, where digests of weights are
                                     kept (~/.cache/kvconn/digests)

docs/sglang.md says more.`
}

// Validate reports numbers that cannot work.
func (c *sglangCmd) Validate() error {
	switch {
	case c.Ranks < 1:
		return errors.New("--ranks must be positive")
	case c.HostGB < 0:
		return errors.New("--host-gb must be positive")
	case c.PageSize < 1 || c.PageSize > connector.MaxBlockSize:
		return fmt.Errorf("--page-size must be 1 to %d", connector.MaxBlockSize)
	}
	return nil
}

// sglangBackend is the configuration of SGLang's storage backend (sglang/srt/mem_cache/storage/backend_factory.py, 0.5.23).
type sglangBackend struct {
	Name        string `json:"backend_name"`
	Module      string `json:"module_path"`
	Class       string `json:"class_name"`
	Interface   int    `json:"interface_v1"`
	Allocator   string `json:"allocator"`
	PassParents bool   `json:"hicache_storage_pass_prefix_keys"`
	Socket      string `json:"socket"`
}

// Run prints the flags and nothing else.
func (c *sglangCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	socket, err := c.path(ctx, command, resolver, std)
	if err != nil {
		return err
	}
	if strings.ContainsAny(socket, " \t\n*?[]\\\"'") {
		return fmt.Errorf("socket path %q: a shell would take it apart; give kvconnd a path without spaces, quotes and wildcards", socket)
	}
	b, err := json.Marshal(sglangBackend{
		Name: "kvconn", Module: "kvconn.sglang", Class: "KVConnStorage", Interface: 1, Allocator: "shm", PassParents: true, Socket: socket,
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.Out, strings.Join([]string{
		"--enable-hierarchical-cache", "--page-size", strconv.Itoa(c.PageSize), "--hicache-size", strconv.Itoa(c.hostGB()),
		"--hicache-mem-layout", "page_first", "--hicache-write-policy", "write_through", "--hicache-host-memory-mode", c.mode(),
		"--hicache-storage-prefetch-policy", "timeout", "--hicache-storage-backend", "dynamic",
		"--hicache-storage-backend-extra-config", string(b),
	}, " "))
	return err
}

// hostGB is SGLang's host memory for each rank, in its unit.
func (c *sglangCmd) hostGB() int {
	const gb = 1e9
	if c.HostGB > 0 {
		return c.HostGB
	}
	return max(1, int(hostmemory.DefaultBytes()/gb)/c.Ranks)
}

func (c *sglangCmd) mode() string {
	if c.KeepHost {
		return "cache"
	}
	return "buffer_only"
}
