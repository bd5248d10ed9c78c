package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// avoid are words and turns that make English hard to read, with what to write for them.
func avoid() map[string]string {
	return map[string]string{
		`behind`:                         "after, following, beyond; behind is for places: behind a proxy, left behind, fell behind",
		`in front of`:                    "before; in front of is for places: a router in front of engines",
		`for ever`:                       "permanently, indefinitely",
		`so many`:                        "n, that many",
		`of which`:                       "two sentences; none of which and its like are right",
		`(of|for|by|with|to) whom`:       "two sentences",
		`anew`:                           "again",
		`what (is|are|was|were) told`:    "name what is told",
		`as far as`:                      "if, where, up to; as far as possible is right",
		`likewise`:                       "also",
		`in vain`:                        "without success",
		`to be had`:                      "available",
		`that there (is|was) not`:        "unknown, missing",
		`whatever way`:                   "however",
		`says not`:                       "does not say",
		`(^|[.;:] )[Ww]ho [a-z]+s`:       "name who it is: a caller, a client, a thing",
		`(^|[.;:] )Those (that|who|of) `: "name them",
	}
}

// right are uses of these words that are right.
func right() *regexp.Regexp {
	return regexp.MustCompile(`(?i)(left|leaves?|leaving)( [\w,'%]+){0,6} behind` +
		`|f[ae]ll(s|en|ing)?( so| too)?( far)? behind|(lags?|far|is|are|was|nobody is|remains?) behind( in [a-z]+)?[,.;:)]` +
		`|functions behind|stands? behind|behind ((a|an|the|one|its|each|this|every|your|kvconnd's|\w+'s) )?(reverse |load )?(proxy|proxies|router|balancer|port|endpoint|interface|descriptor|pidfd|pointer|socket|NAT)\b` +
		`|(router|policy|prox(y|ies)|cache|handler|balancer|\bit|tier|daemon|level|memory)"?( of \w+)?( that stands| stands?| is)? in front of|puts? (these|it) in front of` +
		`|(all|some|none|each|any|one|two|both|most|many|half|part) of which|as far as (possible|\w+( \w+)? can tell)|who (computes|gets)`)
}

// always is the longest text that every match of a pattern of avoid has. It is found faster than the
// pattern, which is looked for only where it is.
func always(pattern string) (text string) {
	for _, piece := range regexp.MustCompile(`\([^)]*\)|\[[^\]]*\]\+?`).Split(pattern, -1) {
		if len(piece) > len(text) {
			text = piece
		}
	}
	return text[1:] // the first letter may be a capital
}

// prose returns what people read of a file: comments and strings of Go files, all of others.
// White space and the marks of comments are one space.
func prose(t *testing.T, file string, b []byte) []string {
	if path.Ext(file) != ".go" {
		return []string{regexp.MustCompile(`\s+(#+ |// |\* |> )?\s*`).ReplaceAllString(string(b), " ")}
	}
	f, err := parser.ParseFile(token.NewFileSet(), file, b, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, c := range f.Comments {
		texts = append(texts, strings.Join(strings.Fields(c.Text()), " "))
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
			texts = append(texts, s.Value)
		}
		return true
	})
	return texts
}

// Comments, documents, help and messages are in plain English.
func TestPlainEnglish(t *testing.T) {
	type rule struct {
		word            *regexp.Regexp
		always, instead string
	}
	var rules []rule
	for w, better := range avoid() {
		word := regexp.MustCompile(`(?:\b|^)(?:` + w + `|` + strings.ToUpper(w[:1]) + w[1:] + `)\b`)
		rules = append(rules, rule{word, always(w), better})
	}
	right := right()
	for _, file := range textFiles(t) {
		for _, text := range prose(t, file, read(t, file)) {
			for _, r := range rules {
				if !strings.Contains(text, r.always) {
					continue
				}
				for _, at := range r.word.FindAllStringIndex(text, -1) {
					spared := func(of []int) bool { return of[0] < at[1] && at[0] < of[1] }
					if !slices.ContainsFunc(right.FindAllStringIndex(text, -1), spared) {
						t.Errorf("%s: …%s…: write %s", file, text[max(0, at[0]-45):min(len(text), at[1]+45)], r.instead)
					}
				}
			}
		}
	}
}
