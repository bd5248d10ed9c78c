// Package settings gives flags their values from files and the environment, knows where each value comes from, and turns
// checked settings into the options of the parts that they configure.
package settings

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/nearest"
)

// File is the --config flag of the daemon's settings, RouterFile that of the router's. A
// command that has one takes the values of its other flags from that file where neither the
// command line nor the environment sets them.
type (
	File       string
	RouterFile string
)

// Resolver gives flags their values from the file of settings, and remembers
// which. A variable that is set to nothing counts as not set.
type Resolver struct {
	path   string
	values map[string]string
	// lists are those of a router's file.
	lists config.Lists
	// from are the flags that the file gave a value.
	from map[string]bool
}

var _ kong.Resolver = (*Resolver)(nil)

// Validate implements [kong.Resolver]: there is nothing to check before a flag asks.
func (*Resolver) Validate(*kong.Application) error { return nil }

// Resolve implements [kong.Resolver].
func (r *Resolver) Resolve(ctx *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	set := slices.ContainsFunc(flag.Envs, func(env string) bool { return os.Getenv(env) != "" })
	if set || isConfigFile(flag) {
		return nil, nil
	}
	if i := slices.IndexFunc(parent.Flags, isConfigFile); i >= 0 {
		if err := r.read(ctx, parent.Flags[i]); err != nil {
			return nil, err
		}
		if v, ok := r.values[config.Key(flag.Name)]; ok {
			r.from[flag.Name] = true
			return v, nil
		}
	}
	if slices.ContainsFunc(flag.Envs, func(env string) bool { _, ok := os.LookupEnv(env); return ok }) {
		switch {
		case flag.HasDefault:
			return flag.Default, nil
		case flag.IsBool():
			return false, nil
		}
	}
	return nil, nil
}

// read reads the file that the flag or the environment names, once.
func (r *Resolver) read(ctx *kong.Context, flag *kong.Flag) (err error) {
	if r.values != nil {
		return nil
	}
	r.values, r.from = make(map[string]string), make(map[string]bool)
	r.path = cmp.Or(reflect.ValueOf(ctx.FlagValue(flag)).String(), os.Getenv(flag.Envs[0]))
	switch {
	case r.path == "":
	case flag.Target.Type() == reflect.TypeFor[File]():
		r.values, _, err = config.ReadFile[config.Serve](r.path)
	default:
		r.values, r.lists, err = config.ReadFile[config.Router](r.path)
	}
	if err != nil {
		return FileError{err}
	}
	return nil
}

// Path is the file that values came from, "" if there was none.
func (r *Resolver) Path() string { return r.path }

// Lists are those of a router's file.
func (r *Resolver) Lists() config.Lists { return r.lists }

// FileError is about the file as a whole, not about the flag that happened to ask for it.
type FileError struct{ error }

// Source says where the value of a flag comes from, once the command line is parsed.
func (r *Resolver) Source(ctx *kong.Context, name string) config.Source {
	for _, p := range ctx.Path {
		if p.Flag != nil && p.Flag.Name == name && !p.Resolved {
			return config.Source{Kind: config.FromFlag, Name: "--" + name}
		}
	}
	if r.from[name] {
		return config.Source{Kind: config.FromFile, Name: r.path}
	}
	for _, flag := range ctx.Flags() {
		for _, env := range flag.Envs {
			if flag.Name == name && os.Getenv(env) != "" {
				return config.Source{Kind: config.FromEnvironment, Name: env}
			}
		}
	}
	return config.Source{Kind: config.FromDefault}
}

func isConfigFile(flag *kong.Flag) bool {
	t := flag.Target.Type()
	return t == reflect.TypeFor[File]() || t == reflect.TypeFor[RouterFile]()
}

// CheckEnvironment reports variables that are misspelt settings. foreign are those that only begin like settings.
func CheckEnvironment(ctx *kong.Context) (foreign []string, err error) {
	var known []string
	_ = kong.Visit(ctx.Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			known = append(known, flag.Envs...)
		}
		return next(nil)
	})
	return config.CheckEnvironment(os.Environ(), known)
}

// WithSources adds to each line about a setting, by its key, where the setting's value comes from. The parser puts the
// command before it.
func (r *Resolver) WithSources(ctx *kong.Context, text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if command, rest, ok := strings.Cut(line, ": "); ok && !strings.Contains(command, " ") {
			line = rest
		}
		key, _, _ := strings.Cut(line, " ")
		switch s := r.Source(ctx, strings.ReplaceAll(key, "_", "-")); s.Kind {
		case config.FromFile:
			lines[i] += " (" + key + " in " + s.Name + ")"
		case config.FromEnvironment:
			lines[i] += " (from " + s.Name + ")"
		case config.FromFlag:
			lines[i] += " (" + s.Name + ")"
		}
	}
	return strings.Join(lines, "\n")
}

// WarnForeign says which variables are not settings.
func WarnForeign(log *slog.Logger, names []string) {
	if len(names) > 0 {
		log.Warn("environment variables that begin with KVCONN_ are no settings and are ignored", "names", names,
			"remedy", "none is needed if they are not meant for kvconnd; kvconnd serve --help lists its variables")
	}
}

// Explain adds the nearest flag to an error about an unknown flag, and the source of the value to
// an error about a value that was not given as a flag.
func Explain(err *kong.ParseError, resolver *Resolver) string {
	if of := (FileError{}); errors.As(err, &of) {
		return of.Error()
	}
	text := err.Error()
	if flag, ok := strings.CutSuffix(text, `: expected string value but got "EOL" (<EOL>)`); ok {
		return flag + " needs a value"
	}
	if name, ok := strings.CutPrefix(text, "--"); ok && err.Context != nil {
		name = name[:strings.IndexAny(name+" ", " :=")]
		switch s := resolver.Source(err.Context, name); {
		case s.Kind == config.FromFile:
			return text + " (" + config.Key(name) + " in " + s.Name + ")"
		case s.Kind == config.FromEnvironment && !strings.Contains(text, s.Name):
			return text + " (from " + s.Name + ")"
		}
	}
	if err.Context != nil {
		text = resolver.WithSources(err.Context, text)
	}
	given, ok := strings.CutPrefix(text, "unknown flag ")
	if !ok || err.Context == nil || strings.Contains(text, "did you mean") {
		return text
	}
	var known []string
	for _, flag := range err.Context.Flags() {
		if !flag.Hidden {
			known = append(known, "--"+flag.Name)
		}
	}
	return text + nearest.Hint(given, known)
}
