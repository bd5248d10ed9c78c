package main

import (
	"encoding/json"
	"os"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/config"
)

// routerFileEnv names the router's file where --config does not.
const routerFileEnv = "KVCONN_ROUTER_CONFIG"

// routerFile is the router's --config flag. Its file has a schema of its own.
type routerFile string

// routerFileValues are what a router's file says, and which flags took their value from it.
type routerFileValues struct {
	path   string
	values map[string]string
	ranks  []json.RawMessage
	from   map[string]bool
}

var _ kong.Resolver = (*routerFileValues)(nil)

// resolveRouterFile reads the file that the flag or the environment names, if one does, and
// has flags and environment come before its values.
func resolveRouterFile(ctx *kong.Context) (*routerFileValues, error) {
	r := &routerFileValues{path: os.Getenv(routerFileEnv), from: make(map[string]bool)}
	for _, flag := range ctx.Flags() {
		if v, ok := ctx.FlagValue(flag).(routerFile); ok && v != "" {
			r.path = string(v)
		}
	}
	if r.path == "" {
		return r, nil
	}
	var err error
	if r.values, r.ranks, err = config.ReadRouterFile(r.path); err != nil {
		return r, err
	}
	ctx.AddResolver(r)
	return r, nil
}

// Validate implements [kong.Resolver].
func (*routerFileValues) Validate(*kong.Application) error { return nil }

// Resolve implements [kong.Resolver].
func (r *routerFileValues) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if slices.ContainsFunc(flag.Envs, func(env string) bool { return os.Getenv(env) != "" }) {
		return nil, nil
	}
	v, ok := r.values[config.Key(flag.Name)]
	if !ok {
		return nil, nil
	}
	r.from[flag.Name] = true
	return v, nil
}
