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

	"github.com/kvconn/kvconn/internal/testkit/docs"
)

// members are the fields and methods of a type, and the types that it embeds.
type members struct {
	names    map[string]bool
	embedded []string // NAME or PACKAGE.NAME
}

// declared is what a package, or several of one name, declare.
type declared map[string]*members

func (d declared) of(name string) *members {
	if d[name] == nil {
		d[name] = &members{names: make(map[string]bool)}
	}
	return d[name]
}

// universe has what the module's packages declare, by package name and by folder. Tests' files are
// looked into for folders alone: what they declare has no meaning elsewhere.
type universe struct {
	packages, folders map[string]declared
	// imports are the names of packages that are not of the module, by folder.
	foreign map[string]bool
}

func parseAll(t *testing.T) *universe {
	t.Helper()
	u := &universe{packages: make(map[string]declared), folders: make(map[string]declared), foreign: make(map[string]bool)}
	for _, file := range goFiles(t) {
		f, err := parser.ParseFile(token.NewFileSet(), file, read(t, file), parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			imp := strings.Trim(i.Path.Value, `"`)
			if name := path.Base(regexp.MustCompile(`/v\d+$`).ReplaceAllString(imp, "")); !strings.HasPrefix(imp, module) {
				u.foreign[name] = true
			}
		}
		into := []declared{in(u.folders, path.Dir(file))}
		if !strings.HasSuffix(file, "_test.go") {
			into = append(into, in(u.packages, f.Name.Name))
		}
		for _, d := range into {
			declare(d, f)
		}
	}
	return u
}

func in(m map[string]declared, key string) declared {
	if m[key] == nil {
		m[key] = make(declared)
	}
	return m[key]
}

func declare(d declared, f *ast.File) {
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				d.of(decl.Name.Name)
			} else {
				d.of(typeName(decl.Recv.List[0].Type)).names[decl.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						d.of(n.Name)
					}
				case *ast.TypeSpec:
					declareType(d.of(spec.Name.Name), spec.Type)
				}
			}
		}
	}
}

func declareType(m *members, of ast.Expr) {
	var fields *ast.FieldList
	switch of := of.(type) {
	case *ast.StructType:
		fields = of.Fields
	case *ast.InterfaceType:
		fields = of.Methods
	default:
		m.embedded = append(m.embedded, typeName(of)) // an alias, or a type with the same fields
		return
	}
	for _, f := range fields.List {
		for _, n := range f.Names {
			m.names[n.Name] = true
		}
		if len(f.Names) == 0 {
			name := typeName(f.Type)
			m.names[name[strings.LastIndex(name, ".")+1:]] = true
			m.embedded = append(m.embedded, name)
		}
	}
}

// typeName is the name of a type, without its parameters, "" if it has none.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return typeName(e.X) + "." + e.Sel.Name
	}
	return ""
}

// has reports whether d declares a name, as NAME or TYPE.MEMBER. Members of embedded types count.
func (u *universe) has(d declared, name string) bool {
	of, member, qualified := strings.Cut(name, ".")
	m := d[of]
	if m == nil || !qualified || m.names[member] {
		return m != nil
	}
	return slices.ContainsFunc(m.embedded, func(e string) bool {
		if pkg, name, other := strings.Cut(e, "."); other {
			return u.packages[pkg] == nil || u.has(u.packages[pkg], name+"."+member)
		}
		return e != of && u.has(d, e+"."+member)
	})
}

// known reports whether a name exists: PACKAGE.NAME, PACKAGE.TYPE.MEMBER, or, in any package, NAME,
// TYPE.MEMBER, and the name of a member.
func (u *universe) known(name string) bool {
	pkg, rest, qualified := strings.Cut(name, ".")
	if qualified && u.packages[pkg] != nil {
		return u.has(u.packages[pkg], rest)
	}
	for _, d := range u.packages {
		if u.has(d, name) {
			return true
		}
		for _, m := range d {
			if m.names[name] {
				return true
			}
		}
	}
	return false
}

// Documents use the names of the code.
func TestGoNamesInDocumentsExist(t *testing.T) {
	goName := regexp.MustCompile(`^((?:[a-z]\w*\.)?[A-Z][a-z]\w*(?:\.[A-Z]\w*)*)(?:\([^)]*\))?$`)
	others := []string{ // of engines, of the system, and of libraries
		"BlockStored", "BlockRemoved", "AllBlocksCleared", "EngineCore.add_lora", "HiCacheStorage", "SchedulerWeightUpdaterManager", "MultiConnector", "Authorization", "LimitNOFILE", "LimitMEMLOCK",
		"prometheus.Counter", "bytes.Equal", "FormatValueSeparation", "NoSync",
	}
	u, found := parseAll(t), 0
	for _, d := range docs.All(t) {
		for _, span := range d.Spans {
			m := goName.FindStringSubmatch(span)
			if m == nil || slices.Contains(others, m[1]) || regexp.MustCompile(`^(Test|Benchmark|Fuzz)[A-Z]`).MatchString(m[1]) {
				continue
			}
			found++
			if !u.known(m[1]) {
				t.Errorf("%s names %s, which no package has", d.Path, span)
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d names were found", found)
	}
}

// Links in comments, [Type] or [package.Type.Method], lead to what exists.
func TestLinksOfCommentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`(?:^|[\s(])\[\*?((?:[a-z]\w*\.)?\w*[A-Z]\w*(?:\.\w+)?)\](?:[\s.,:;)]|$)`)
	u := parseAll(t)
	for _, file := range goFiles(t) {
		if strings.HasPrefix(file, "internal/lint/") {
			continue // this one
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, read(t, file), parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		own := u.folders[path.Dir(file)]
		for _, c := range f.Comments {
			for _, m := range link.FindAllStringSubmatch(c.Text(), -1) {
				pkg, name, qualified := strings.Cut(m[1], ".")
				if m[1] == strings.ToUpper(m[1]) || u.has(own, m[1]) || qualified && (u.packages[pkg] != nil && u.has(u.packages[pkg], name) || u.packages[pkg] == nil && u.foreign[pkg]) {
					continue
				}
				t.Errorf("%s: a comment refers to [%s], which is not there", file, m[1])
			}
		}
	}
}
