package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"keyframe/coordinator/fault"
)

// secret is a password or token that stands in a file or in an environment
// variable.
type secret struct {
	field string // redis.password: the fields are redis.passwordFile and redis.passwordEnv
	file  string
	env   string
}

// RedisPassword is the password of redis.passwordFile or redis.passwordEnv, ""
// when neither is set. One that stands in the URL stays there. It is read anew
// with each call, so a changed file counts at the next connection.
func (f File) RedisPassword() (string, error) { return f.Redis.Password() }

// Password is File.RedisPassword.
func (r Redis) Password() (string, error) {
	return secret{"redis.password", r.PasswordFile, r.PasswordEnv}.value()
}

// Password is that of the drills' server.
func (d Drill) Password() (string, error) {
	return secret{"drill.redis.password", d.Redis.PasswordFile, d.Redis.PasswordEnv}.value()
}

// APIToken is the token of api.tokenFile or api.tokenEnv, "" when neither is
// set.
func (f File) APIToken() (string, error) {
	return secret{"api.token", f.API.TokenFile, f.API.TokenEnv}.value()
}

// value reads the secret. Errors are *fault.Error of code config; they name
// the file or variable, never what it holds.
func (s secret) value() (string, error) {
	v, err := s.read()
	if err != nil {
		return "", fault.Wrap(err, fault.Config, "", "%s", s.source())
	}
	return v, nil
}

// source is the field that says where the secret is.
func (s secret) source() string {
	file, env := "File", "Env"
	if strings.HasSuffix(s.field, ".") { // its fields are named file and env
		file, env = "file", "env"
	}
	if s.file != "" {
		return fmt.Sprintf("%s%s %q", s.field, file, s.file)
	}
	return fmt.Sprintf("%s%s %q", s.field, env, s.env)
}

func (s secret) read() (string, error) {
	switch {
	case s.file != "":
		return s.readFile()
	case s.env != "":
		v := os.Getenv(s.env)
		if v == "" {
			return "", errors.New("the environment variable is not set or empty: set it, or use a file")
		}
		return v, nil
	}
	return "", nil
}

// readFile takes the file's only line, with its spaces. A file that others may
// write is refused: they could choose the secret.
func (s secret) readFile() (string, error) {
	info, err := os.Stat(s.file)
	if err != nil {
		return "", fmt.Errorf("can't be read: %w", cause(err))
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("is no regular file: give the path of a file with one line")
	}
	if info.Mode().Perm()&0o002 != 0 {
		return "", fmt.Errorf("anybody may write it (mode %04o): chmod o-w", info.Mode().Perm())
	}
	b, err := readLimited(s.file)
	if err != nil {
		return "", fmt.Errorf("can't be read: %w", cause(err))
	}
	v := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	switch {
	case strings.TrimSpace(v) == "":
		return "", errors.New("the file is empty: write the secret into it")
	case strings.ContainsAny(v, "\r\n\x00"):
		return "", errors.New("the file has more than one line: keep the one with the secret")
	}
	return v, nil
}

// cause is the reason in a file error, whose path is named already.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// warning is about a file that anybody may read. That is no error: secrets
// that an orchestrator mounts into a container are often of mode 0444.
func (s secret) warning() string {
	if s.file == "" {
		return ""
	}
	info, err := os.Stat(s.file)
	if err != nil || info.Mode().Perm()&0o004 == 0 {
		return ""
	}
	return fmt.Sprintf("%s: anybody on this machine may read it (mode %04o): chmod o-r", s.source(), info.Mode().Perm())
}

func checkSecret(l *list, at, what string, s secret) {
	if s.file != "" && s.env != "" {
		l.add(at+"."+what+"File", text(s.file), "%sEnv %q is set too: keep one", what, s.env)
		return
	}
	if _, err := s.read(); err != nil {
		field, value := at+"."+what+"File", s.file
		if s.file == "" {
			field, value = at+"."+what+"Env", s.env
		}
		l.add(field, text(value), "%v", err)
	}
}
