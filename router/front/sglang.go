package front

import (
	"encoding/json"

	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/tokenize"
)

// readPin takes the pin from a body that names the rank as SGLang has it: by its number on its server. It is strict, as
// on the server. note says why it is not followed, "" if it is or there is none. The error is an [Error].
func (x *Reader) readPin(q *Request, fields Fields) (note string, err error) {
	if x.EngineRank == nil {
		return "", nil
	}
	for _, name := range [...]string{registry.RankField, registry.OldRankField} {
		var number *int
		if json.Unmarshal(fields[name], &number) != nil || number == nil { // the engine says what is wrong with it
			continue
		}
		rank, ranks, taken := x.EngineRank(q.Model, *number)
		switch {
		case !taken:
		case ranks == 0:
			return "", BadRequest("%s is %d: no rank of the model has that number", name, *number)
		case ranks == 1:
			q.Pin, q.Strict = rank, true
		default:
			return name + " is not followed: ranks of several servers have that number", nil
		}
		return "", nil
	}
	return "", nil
}

// Unpin leaves out a pin of SGLang's, which another one wins over.
func (f Fields) Unpin() {
	delete(f, registry.RankField)
	delete(f, registry.OldRankField)
}

// readAdapter takes the adapter's name from a body that names it as SGLang has it, beside the model. Of a list, one for each
// prompt, it is the first: that prompt decides.
func (x *Reader) readAdapter(q *Request, fields Fields) {
	if x.TakesAdapter == nil || !x.TakesAdapter(q.Model) {
		return
	}
	raw := fields[registry.AdapterField]
	if first, _ := tokenize.FirstOf(raw); first != nil {
		raw = first
	}
	var name *string
	if json.Unmarshal(raw, &name) == nil && name != nil { // else the engine says what is wrong with it
		q.Scope.LoRA = *name
	}
}
