// Command generate writes the tables of docs/configuration.md below the repository's root, which is its argument.
package main

import (
	"fmt"
	"os"

	"github.com/kvconn/kvconn/internal/manual"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate ROOT")
		os.Exit(2)
	}
	if err := manual.Write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
