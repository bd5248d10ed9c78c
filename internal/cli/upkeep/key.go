package upkeep

import (
	"fmt"

	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/store/seal"
)

// KeyCmd is `kvconnd key`.
type KeyCmd struct {
	New keyNewCmd `cmd:"" help:"Write a new key file."`
}

type keyNewCmd struct {
	File string `arg:"" placeholder:"FILE" help:"Key file to write. It must not exist."`
}

// Help is shown below the command's summary.
func (*keyNewCmd) Help() string {
	return `The file has one key and mode 0600. Give it to 'kvconnd serve --key-file' on every node. To
rotate, add the line of another file as second line on all nodes, then make it the first, and
drop the old one when nothing that it sealed is needed.`
}

// Run writes the file.
func (c *keyNewCmd) Run(std *terminal.Streams) error {
	ring, err := seal.Create(c.File)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.Out, "key %s in %s\n", seal.KeyName(ring.KeyID()), c.File)
	return err
}
