package prefix

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
)

// testRoot is where the prompts of most tests begin.
var testRoot = blockkey.Tokens.At(connector.Key{}, blockkey.Tail{})
