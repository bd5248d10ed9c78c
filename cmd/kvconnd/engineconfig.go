package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/kvconn/kvconn/internal/config"
)

// vllmConfigCmd is `kvconnd config vllm`.
type vllmConfigCmd struct {
	Socket string `name:"socket" env:"KVCONN_SOCKET" placeholder:"PATH" help:"The daemon's Unix socket. Default: that of 'kvconnd serve'."`
}

// vllmConfig is vLLM's KVTransferConfig (vllm/config/kv_transfer.py, 0.32).
type vllmConfig struct {
	Connector   string            `json:"kv_connector"`
	ModulePath  string            `json:"kv_connector_module_path"`
	Role        string            `json:"kv_role"`
	LoadFailure string            `json:"kv_load_failure_policy"`
	Extra       map[string]string `json:"kv_connector_extra_config"`
}

// Run prints the configuration and nothing else.
func (c *vllmConfigCmd) Run(std *streams) error {
	if c.Socket == "" {
		c.Socket = config.DefaultSocket()
	}
	socket, err := filepath.Abs(c.Socket)
	if err != nil {
		return fmt.Errorf("socket path: %w", err)
	}
	b, err := json.Marshal(vllmConfig{
		Connector: "KVConnConnector", ModulePath: "kvconn.vllm", Role: "kv_both",
		// vLLM's default ends a request whose load failed; a cache must cost hits only.
		LoadFailure: "recompute",
		Extra:       map[string]string{"socket": socket},
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.out, "%s\n", b)
	return err
}
