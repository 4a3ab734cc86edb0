package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// arrange puts the flags of a command line before its positional arguments,
// wherever they stood: the library alone stops at the first argument. What
// follows "--" is never a flag, and neither is a negative number.
func arrange(c *cli.App, args []string) []string {
	if len(args) == 0 {
		return []string{c.Name}
	}
	var path, flags, rest []string
	commands, takes := c.Commands, takesValue(everyFlag(c.Commands))
	for i := 1; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			rest = append(rest, args[i+1:]...)
			i = len(args)
		case isFlag(arg):
			flags = append(flags, arg)
			if !takes[strings.TrimLeft(arg, "-")] {
				continue
			}
			if i++; i == len(args) { // without its value nothing may follow, or that would be it
				return slices.Concat(args[:1], path, flags)
			}
			flags = append(flags, args[i])
		default:
			found := findCommand(commands, arg)
			if found == nil || len(rest) > 0 {
				rest = append(rest, arg)
				continue
			}
			path, commands = append(path, arg), found.Subcommands
			if len(commands) == 0 {
				takes = takesValue(found.Flags)
			}
		}
	}
	out := append([]string{args[0]}, path...)
	out = append(out, flags...)
	if len(rest) > 0 {
		out = append(out, "--")
	}
	return append(out, rest...)
}

// isFlag tells flags from arguments: "-" is stdin, "-5" a number.
func isFlag(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && (arg[1] < '0' || arg[1] > '9')
}

func findCommand(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// everyFlag is every flag of some commands and of all below them.
func everyFlag(commands []*cli.Command) []cli.Flag {
	var all []cli.Flag
	for _, c := range commands {
		all = append(all, c.Flags...)
		all = append(all, everyFlag(c.Subcommands)...)
	}
	return all
}

// takesValue tells the flags that are followed by a value from those that
// stand alone.
func takesValue(flags []cli.Flag) map[string]bool {
	takes := map[string]bool{}
	for _, f := range flags {
		_, alone := f.(*cli.BoolFlag)
		for _, name := range f.Names() {
			takes[name] = !alone
		}
	}
	return takes
}

// wantsJSON looks for -o json in arranged arguments before they are parsed, so
// that a wrong flag is told as JSON too.
func wantsJSON(args []string) bool {
	for i, arg := range args {
		if arg == "--" {
			return false
		}
		name, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !isFlag(arg) || (name != "o" && name != "output") {
			continue
		}
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		return value == "json"
	}
	return false
}
