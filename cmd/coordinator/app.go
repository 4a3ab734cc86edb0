package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/coordinator/fault"
)

// version is set by the linker; otherwise the module's build information says
// it.
var version = ""

// defaultAddr is where the daemon listens and where commands look for it.
const defaultAddr = "http://127.0.0.1:7070"

// app is one run of the command with what it may touch, so that tests can run
// it in-process.
type app struct {
	in          io.Reader
	out         io.Writer
	err         io.Writer
	getenv      func(string) string
	inTerminal  bool // a person can be asked
	errTerminal bool // progress is shown
	json        bool // -o json, known once a command's flags are parsed
	// stopTime is how long operations may go on when the daemon is stopped.
	stopTime time.Duration
	// tokenEvery is how often the files of tokens are read again.
	tokenEvery time.Duration
	// ready is told the API's address once the daemon serves it (tests).
	ready  func(addr string)
	opened []*api.Client
}

// exit codes (design §8).
const (
	exitDone     = 0
	exitFailed   = 1
	exitUsage    = 2
	exitProblems = 3
	exitAbsent   = 4
	exitRefused  = 5
	exitNoDaemon = 6
)

// ExitCode is the exit code of each fault: the one switch of the command.
func ExitCode(err error) int {
	if err == nil {
		return exitDone
	}
	switch fault.CodeOf(err) {
	case fault.Usage, fault.Config:
		return exitUsage
	case fault.Problems:
		return exitProblems
	case fault.NoJob, fault.NoCheckpoint, fault.NoKey, fault.NoOperation:
		return exitAbsent
	case fault.Busy, fault.Refused, fault.NoState, fault.StateLost, fault.Denied:
		return exitRefused
	case fault.NoDaemon:
		return exitNoDaemon
	case fault.Permission, fault.Unreachable, fault.Corrupt, fault.Store, fault.Failed, fault.TooLarge, fault.Internal:
		return exitFailed
	}
	return exitFailed
}

// run parses the arguments and runs one command until it ends, or ctx does, or
// a signal asks it to.
func (a *app) run(ctx context.Context, args []string) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := a.cli()
	args = arrange(c, args)
	a.json = wantsJSON(args)
	err := c.RunContext(ctx, args)
	for _, client := range a.opened {
		client.Close()
	}
	if err == nil {
		return exitDone
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		err = fault.New(fault.Failed, "", "interrupted")
	}
	var said *toldError
	if !errors.As(err, &said) {
		err = coordinator.Explain(err)
		a.report(err)
	}
	return ExitCode(err)
}

// report tells an error on stderr: JSON with -o json, otherwise a line with
// the hint below it.
func (a *app) report(err error) {
	f := fault.As(err)
	if a.json {
		// Nothing is left to do when stderr can't be written.
		_ = json.NewEncoder(a.err).Encode(map[string]any{"error": f})
		return
	}
	fmt.Fprintf(a.err, "error: %s\n", f.Message)
	if f.Hint != "" {
		fmt.Fprintf(a.err, "hint: %s\n", f.Hint)
	}
}

// toldError has an exit code but nothing more to say: the output said it.
type toldError struct{ err *fault.Error }

func (e *toldError) Error() string { return e.err.Error() }
func (e *toldError) Unwrap() error { return e.err }

func told(code fault.Code, text string) error {
	return &toldError{fault.New(code, "", "%s", text)}
}

func (a *app) cli() *cli.App {
	c := cli.NewApp()
	c.Name = "coordinator"
	c.Usage = "checkpoint, restore and rescale the state of streaming jobs"
	c.Version = versionText()
	c.HideVersion = true
	c.Reader, c.Writer, c.ErrWriter = a.in, a.out, a.err
	c.DisableSliceFlagSeparator = true              // names may hold commas
	c.ExitErrHandler = func(*cli.Context, error) {} // run reports
	c.OnUsageError = usageError
	c.CommandNotFound = nil
	c.Action = func(ctx *cli.Context) error {
		if ctx.Args().Len() > 0 {
			return fault.New(fault.Usage, "`coordinator help` lists the commands", "no command %q", ctx.Args().First())
		}
		return cli.ShowAppHelp(ctx)
	}
	c.Commands = []*cli.Command{
		a.runCommand(), a.demoCommand(), a.discoverCommand(), a.configCommand(), a.jobCommand(),
		a.checkpointCommand(), a.restoreCommand(), a.rescaleCommand(), a.undoCommand(), a.drillCommand(),
		a.keygroupCommand(), a.doctorCommand(), a.alarmsCommand(), a.storeCommand(), a.auditCommand(), a.benchCommand(), a.versionCommand(),
	}
	c.Flags = commonFlags()
	for _, cmd := range c.Commands {
		a.prepare(cmd)
	}
	return c
}

func usageError(_ *cli.Context, err error, _ bool) error {
	return fault.New(fault.Usage, "add --help to see the flags; write -- before arguments that begin with a dash", "%s", err.Error())
}

// commonFlags are those of every command. Groups of commands have them only so
// that a missing or unknown command is told as such.
func commonFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "addr", Usage: "address of the coordinator; COORDINATOR_ADDR without it", DefaultText: defaultAddr},
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "table or json", Value: "table"},
		&cli.StringFlag{Name: "cert-file", Usage: "certificate to show to the coordinator; COORDINATOR_CERT_FILE without it"},
		&cli.StringFlag{Name: "key-file", Usage: "key of that certificate; COORDINATOR_KEY_FILE without it"},
		&cli.StringFlag{Name: "ca-file", Usage: "authority of the coordinator's certificate; COORDINATOR_CA_FILE without it, else the system's"},
	}
}

// prepare gives every command the common flags and the same usage errors.
func (a *app) prepare(cmd *cli.Command) {
	cmd.OnUsageError = usageError
	for _, f := range commonFlags() {
		// A command that talks to Redis alone has flags of these names for that.
		if !slices.ContainsFunc(cmd.Flags, func(own cli.Flag) bool { return own.Names()[0] == f.Names()[0] }) {
			cmd.Flags = append(cmd.Flags, f)
		}
	}
	if len(cmd.Subcommands) > 0 {
		cmd.Action = func(ctx *cli.Context) error {
			if ctx.Args().Len() > 0 {
				return fault.New(fault.Usage, "`coordinator "+cmd.Name+" --help` lists them", "`coordinator %s` has no command %q", cmd.Name, ctx.Args().First())
			}
			return cli.ShowSubcommandHelp(ctx)
		}
		for _, sub := range cmd.Subcommands {
			a.prepare(sub)
		}
		return
	}
	cmd.HideHelpCommand = true // a job may be named help
	action := cmd.Action
	cmd.Action = func(ctx *cli.Context) error {
		switch o := ctx.String("output"); o {
		case "table", "json":
			a.json = o == "json"
		default:
			return fault.New(fault.Usage, "give table or json", "output %q", o)
		}
		return action(ctx)
	}
}

// client is the API's client for a command.
func (a *app) client(ctx *cli.Context) (*api.Client, error) {
	addr := cmp.Or(a.getenv("COORDINATOR_ADDR"), defaultAddr)
	if ctx.IsSet("addr") {
		addr = ctx.String("addr")
	}
	c, err := api.NewClient(addr, a.getenv("COORDINATOR_TOKEN"))
	if err != nil {
		return nil, err
	}
	a.opened = append(a.opened, c)
	return c, c.UseTLS(a.clientTLS(ctx, strings.HasPrefix(addr, "https:")))
}

// clientTLS are the files that flags name, or else the environment, which
// counts for addresses with TLS only: it may be meant for another coordinator.
func (a *app) clientTLS(ctx *cli.Context, secure bool) api.ClientTLS {
	file := func(flag, env string) string {
		if ctx.IsSet(flag) || !secure {
			return ctx.String(flag)
		}
		return a.getenv(env)
	}
	return api.ClientTLS{
		CertFile: file("cert-file", "COORDINATOR_CERT_FILE"), KeyFile: file("key-file", "COORDINATOR_KEY_FILE"), CAFile: file("ca-file", "COORDINATOR_CA_FILE"),
	}
}

// positional checks the number of arguments and gives them.
func positional(ctx *cli.Context, names ...string) ([]string, error) {
	args := ctx.Args().Slice()
	least := 0
	for _, n := range names {
		if !strings.HasPrefix(n, "[") {
			least++
		}
	}
	usage := strings.TrimSpace("usage: " + ctx.Command.HelpName + " " + ctx.Command.ArgsUsage)
	if len(args) < least {
		return nil, fault.New(fault.Usage, usage, "missing argument %s", names[len(args)])
	}
	if len(args) > len(names) {
		return nil, fault.New(fault.Usage, usage, "unexpected argument %q", args[len(names)])
	}
	for i, arg := range args {
		if arg == "" {
			return nil, fault.New(fault.Usage, usage, "argument %s is empty", strings.Trim(names[i], "[]"))
		}
	}
	for len(args) < len(names) {
		args = append(args, "")
	}
	return args, nil
}

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
