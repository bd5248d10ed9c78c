package byname

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"testing"
)

// noImports gives every import an empty package: what is missing has no type, and is of no interest here.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, path[strings.LastIndexByte(path, '/')+1:])
	p.MarkComplete()
	return p, nil
}

// A processor may round a product and a sum once, another one twice, and then they do not decide alike. Go
// allows that unless the product is converted, also where the sum comes in a later statement.
func TestEveryFloatProductIsRoundedByItself(t *testing.T) {
	if a, b := products(t, ".."), products(t, "../published"); a < 1 || b < 3 {
		t.Errorf("only %d and %d products were found", a, b)
	}
}

// products checks the products in the files of a directory and returns how many there are.
func products(t *testing.T, dir string) int {
	fset := token.NewFileSet()
	names, err := filepath.Glob(dir + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	info := &types.Info{Types: make(map[ast.Expr]types.TypeAndValue)}
	config := types.Config{Importer: noImports{}, Error: func(error) {}}
	_, _ = config.Check("policy", fset, files, info)
	conversion := func(e ast.Expr) (of ast.Expr, ok bool) {
		call, ok := ast.Unparen(e).(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return nil, false
		}
		name, ok := call.Fun.(*ast.Ident)
		return ast.Unparen(call.Args[0]), ok && name.Name == "float64"
	}
	isFloat := func(e ast.Expr) bool {
		b, ok := info.Types[e].Type.(*types.Basic)
		_, converted := conversion(e) // of what is imported
		return converted || ok && b.Info()&types.IsFloat != 0
	}
	products, rounded := 0, make(map[ast.Expr]bool)
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if of, ok := conversion(n); ok {
					rounded[of] = true
				}
			case *ast.AssignStmt:
				if n.Tok == token.MUL_ASSIGN && isFloat(n.Lhs[0]) {
					t.Errorf("%v: *= of floats", fset.Position(n.Pos()))
				}
			case *ast.BinaryExpr:
				if n.Op != token.MUL || !isFloat(n.X) && !isFloat(n.Y) || info.Types[n].Value != nil {
					break
				}
				products++
				if !rounded[n] {
					t.Errorf("%v: a product that is not converted to float64", fset.Position(n.Pos()))
				}
				for _, x := range []ast.Expr{n.X, n.Y} { // a factor of a product is rounded with it
					rounded[ast.Unparen(x)] = true
				}
			}
			return true
		})
	}
	return products
}
