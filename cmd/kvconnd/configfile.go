package main

import (
	"os"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/config"
)

// configFileEnv names the configuration file where --config does not.
const configFileEnv = "KVCONN_CONFIG"

// configFile is the --config flag: its values count less than flags and environment.
type configFile string

// BeforeResolve makes the file's values known to the parser.
func (c configFile) BeforeResolve(ctx *kong.Context, trace *kong.Path) error {
	path, ok := ctx.FlagValue(trace.Flag).(configFile)
	if ok && path != "" {
		ctx.AddResolver(fileResolver(string(path)))
	}
	return nil
}

// environmentFile is the resolver for the file named by the environment.
func environmentFile() []kong.Resolver {
	if path := os.Getenv(configFileEnv); path != "" {
		return []kong.Resolver{fileResolver(path)}
	}
	return nil
}

// fileResolver gives the values of a YAML file to the flags of `serve` that neither the
// command line nor the environment sets.
func fileResolver(path string) kong.Resolver {
	var values map[string]string
	return kong.ResolverFunc(func(ctx *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
		if parent.Command == nil || parent.Command.Name != "serve" || flag.Name == "config" {
			return nil, nil
		}
		if values == nil {
			var err error
			if values, err = config.ReadFile(path); err != nil {
				return nil, err
			}
		}
		for _, env := range flag.Envs {
			if os.Getenv(env) != "" {
				return nil, nil
			}
		}
		if v, ok := values[config.Key(flag.Name)]; ok {
			return v, nil
		}
		return nil, nil
	})
}
