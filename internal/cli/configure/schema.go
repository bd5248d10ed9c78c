package configure

import (
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/schema"
)

// schemaCmd is `kvconnd config schema`.
type schemaCmd struct {
	Of string `arg:"" optional:"" name:"command" enum:"serve,router" default:"serve" help:"Whose file: serve or router (default serve)."`
}

// Help is shown below the command's summary.
func (*schemaCmd) Help() string {
	return `Editors complete and check a file by its schema. For those with the YAML language server:

  kvconnd config schema > kvconnd.schema.json

and the first line of kvconnd.yaml:

  # yaml-language-server: $schema=kvconnd.schema.json

The schema knows names and forms. "kvconnd config show --config FILE" also knows what does not fit together.`
}

// Run prints the schema and nothing else.
func (c *schemaCmd) Run(std *terminal.Streams) error {
	if c.Of == "router" {
		return terminal.PrintJSON(std.Out, schema.Router())
	}
	return terminal.PrintJSON(std.Out, schema.Serve())
}
