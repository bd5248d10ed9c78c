// Package target is the flags by which commands are told which daemon, or which router, they ask.
package target

import (
	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/locate"
)

// Daemon are the flags of a command that asks a running daemon. They are named like the daemon's own settings, so that its
// file and its environment say where it is.
type Daemon struct {
	Config    settings.File `name:"config" env:"KVCONN_CONFIG" placeholder:"FILE" help:"The daemon's YAML file of settings, for its address and directory."`
	HTTP      string        `name:"http" env:"KVCONN_HTTP" placeholder:"ADDR" help:"HTTP address or URL of the daemon${or_router=}. Default: that of the daemon that serves --dir, or 127.0.0.1:9477."`
	Dir       string        `name:"dir" env:"KVCONN_DIR" placeholder:"DIR" help:"Ask the daemon that serves this store directory, whatever its address."`
	HTTPToken string        `name:"http-token" env:"KVCONN_HTTP_TOKEN" placeholder:"TOKEN" help:"The daemon's token. Set it in the environment: a command line can be seen by others."`
}

// At returns where the daemon is, for a command line that is parsed. An address on the command line wins over a directory,
// which wins over an address from elsewhere: a daemon on a free port has another address than its settings say.
func (d *Daemon) At(command *kong.Context, resolver *settings.Resolver) locate.Settings {
	at := locate.Settings{HTTP: d.HTTP, Dir: d.Dir, Token: d.HTTPToken}
	if resolver.Source(command, "http").Kind == config.FromFlag {
		at.Dir = ""
	}
	return at
}

// DaemonOrRouter are the flags of a command that shows a router, too, where --http is a router's address.
type DaemonOrRouter struct {
	Daemon `set:"or_router=, or of a router"`
	Token  string `name:"token" env:"KVCONN_ROUTER_TOKEN" placeholder:"TOKEN" help:"The token of a router that --http names. Set it in the environment: a command line can be seen by others."`
}
