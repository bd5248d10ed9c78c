package fault

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits of a script: it is a test's input, and a fuzzer's.
const (
	maxScriptBytes = 1 << 16
	maxFlips       = 64
	maxDelay       = time.Minute
)

// Parse reads a script. Text from a # to the end of its line is a comment.
func Parse(text string) (Script, error) {
	if len(text) > maxScriptBytes {
		return nil, fmt.Errorf("script of %d bytes: at most %d", len(text), maxScriptBytes)
	}
	p := &parser{words: words(text)}
	var s Script
	for !p.end() {
		c, err := p.clause()
		if err != nil {
			return nil, fmt.Errorf("clause %d: %w", len(s)+1, err)
		}
		s = append(s, c)
	}
	return s, nil
}

// words splits a script into brackets and what is between them.
func words(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.ReplaceAll(strings.ReplaceAll(line, "(", " ( "), ")", " ) ")
		out = append(out, strings.Fields(line)...)
	}
	return out
}

type parser struct {
	words []string
	at    int
}

var errEnd = errors.New("the script ends too early")

func (p *parser) end() bool { return p.at == len(p.words) }

func (p *parser) next() (string, error) {
	if p.end() {
		return "", errEnd
	}
	p.at++
	return p.words[p.at-1], nil
}

func (p *parser) expect(want string) error {
	got, err := p.next()
	if err == nil && got != want {
		err = fmt.Errorf("%q: want %q", got, want)
	}
	return err
}

// clause reads (on KIND [PATTERN] ...) or, for all operations, (delay TIME ...).
func (p *parser) clause() (Clause, error) {
	c := Clause{Pattern: "**"}
	if err := p.expect("("); err != nil {
		return c, err
	}
	head, err := p.next()
	if err != nil {
		return c, err
	}
	switch head {
	case "on":
		err = p.subject(&c)
	case "delay":
		c.Effect.Delay, err = p.duration(maxDelay)
	default:
		err = fmt.Errorf("%q: want on or delay", head)
	}
	if err != nil {
		return c, err
	}
	for {
		word, err := p.next()
		switch {
		case err != nil:
			return c, err
		case word == ")":
			return c, c.validate()
		case word == "(":
			err = p.condition(&c)
		default:
			err = c.setEffect(word)
		}
		if err != nil {
			return c, err
		}
	}
}

// subject reads the operation's kind and the pattern, which may be left out.
func (p *parser) subject(c *Clause) error {
	word, err := p.next()
	if err != nil {
		return err
	}
	names := kindNames()
	i := slices.Index(names[:], word)
	if i < 0 {
		return fmt.Errorf("%q is no operation: want one of %s", word, strings.Join(names[:], " "))
	}
	c.Kind = Kind(i)
	if p.end() {
		return errEnd
	}
	word = p.words[p.at]
	if word == "(" || word == ")" || isEffect(word) {
		return nil
	}
	p.at++
	c.Pattern = word
	if _, err := path.Match(word, ""); err != nil {
		return fmt.Errorf("pattern %q: %w", word, err)
	}
	return nil
}

func isEffect(word string) bool {
	_, ok := errnos()[word]
	return ok || word == "torn" || word == "drop" || word == "full"
}

func (c *Clause) setEffect(word string) error {
	if c.Effect != (Effect{}) {
		return fmt.Errorf("%q: the clause has an effect already", word)
	}
	switch errno, ok := errnos()[word]; {
	case ok:
		c.Effect.Errno = errno
	case word == "torn":
		c.Effect.Torn = true
	case word == "drop":
		c.Effect.Drop = true
	case word == "full":
		c.Effect.Full = true
	default:
		return fmt.Errorf("%q is no effect", word)
	}
	return nil
}

// condition reads the rest of a condition or of an effect in brackets.
func (p *parser) condition(c *Clause) error {
	word, err := p.next()
	if err != nil {
		return err
	}
	if (word == "delay" || word == "flip") && c.Effect != (Effect{}) {
		return fmt.Errorf("%q: the clause has an effect already", word)
	}
	switch word {
	case "after":
		c.After, err = p.count()
	case "for":
		c.For, err = p.count()
	case "every":
		c.Every, err = p.count()
	case "prob":
		err = p.probability(c)
	case "range":
		if c.From, err = p.integer(); err == nil {
			c.To, err = p.integer()
		}
		if err == nil && c.From >= c.To {
			err = fmt.Errorf("range %d to %d is empty", c.From, c.To)
		}
	case "since":
		c.Since, err = p.duration(time.Hour)
	case "until":
		c.Until, err = p.duration(time.Hour)
	case "delay":
		c.Effect.Delay, err = p.duration(maxDelay)
	case "flip":
		var n int64
		if n, err = p.count(); err == nil && n > maxFlips {
			err = fmt.Errorf("%d bits: at most %d", n, maxFlips)
		}
		c.Effect.Flip = int(n)
	default:
		err = fmt.Errorf("%q is no condition", word)
	}
	if err != nil {
		return err
	}
	return p.expect(")")
}

func (p *parser) probability(c *Clause) error {
	word, err := p.next()
	if err != nil {
		return err
	}
	c.Prob, err = strconv.ParseFloat(word, 64)
	if err != nil || !(c.Prob > 0 && c.Prob <= 1) {
		return fmt.Errorf("probability %q: want more than 0, at most 1", word)
	}
	if err := p.expect("seed"); err != nil {
		return err
	}
	if word, err = p.next(); err != nil {
		return err
	}
	c.Seed, err = strconv.ParseUint(word, 10, 64)
	return err
}

func (p *parser) integer() (int64, error) {
	word, err := p.next()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q: want a whole number", word)
	}
	return n, nil
}

// count reads a number of operations or bits: at least one.
func (p *parser) count() (int64, error) {
	n, err := p.integer()
	if err == nil && n == 0 {
		err = errors.New("0: want at least 1")
	}
	return n, err
}

func (p *parser) duration(most time.Duration) (time.Duration, error) {
	word, err := p.next()
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(word)
	if err == nil && (d <= 0 || d > most) {
		err = fmt.Errorf("%v: want more than 0, at most %v", d, most)
	}
	return d, err
}

// validate reports a clause that makes no sense.
func (c *Clause) validate() error {
	switch {
	case c.Effect == (Effect{}):
		return errors.New("the clause has no effect")
	case c.Effect.Flip > 0 && c.Kind != Read && c.Kind != Write:
		return errors.New("flip is for read or write")
	case c.Effect.Torn && c.Kind != Write:
		return errors.New("torn is for write")
	case c.Effect.Drop && c.Kind != Write && c.Kind != Sync:
		return errors.New("drop is for write or sync")
	case c.Effect.Full && c.Kind != Free:
		return errors.New("full is for free")
	case c.To > 0 && c.Kind != Read && c.Kind != Write:
		return errors.New("range is for read or write")
	case c.Until > 0 && c.Since >= c.Until:
		return fmt.Errorf("since %v until %v is empty", c.Since, c.Until)
	}
	return nil
}
