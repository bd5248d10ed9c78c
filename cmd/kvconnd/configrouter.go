package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/config"
)

// configRouterCmd is `kvconnd config router`.
type configRouterCmd struct {
	Config routerFile  `name:"config" env:"KVCONN_ROUTER_CONFIG" placeholder:"FILE" help:"YAML file of the router's settings, with its ranks."`
	JSON   bool        `name:"json" help:"Print the settings as JSON."`
	Router shownRouter `embed:""`
}

// shownRouter are the settings without their Validate: see [shown].
type shownRouter config.Router

// Help is shown below the command's summary.
func (*configRouterCmd) Help() string {
	return `Takes the flags, environment and file that "kvconnd router" takes and prints what the
router would run with, ranks included. The exit status is not 0 if it would refuse to.`
}

// Run prints the settings, even if they are wrong.
func (c *configRouterCmd) Run(ctx *kong.Context, resolver *settingsResolver, std *streams) error {
	s := config.Router(c.Router)
	list := config.Settings(s, func(flag string) config.Source { return resolver.source(ctx, flag) })
	for i, rank := range resolver.ranks {
		list = append(list, config.Setting{
			Key: fmt.Sprintf("ranks[%d]", i), Value: string(rank), From: config.Source{Kind: config.FromFile, Name: resolver.path},
		})
	}
	err := printSettings(std.out, list, c.JSON)
	if refused := errors.Join(checkEnvironment(ctx), refusedRouter(&routerCmd{Router: s, fromFile: resolver.ranks})); refused != nil {
		return errors.Join(err, fmt.Errorf("settings: %w", refused))
	}
	return err
}

// refusedRouter is why a router would not start with its settings.
func refusedRouter(c *routerCmd) error {
	if err := c.Validate(); err != nil {
		return err
	}
	_, err := c.options(slog.New(slog.DiscardHandler))
	return err
}
