package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

const password = "hunter2-π"

func TestPasswordsAreNeverPrinted(t *testing.T) {
	f := Defaults()
	f.Redis.URL = "rediss://worker:hunter2-%CF%80@redis.internal:6380/4"
	f.Jobs = []Job{Job{Name: "flights"}.WithDefaults()}
	require.NoError(t, f.Validate())
	asJSON, err := json.Marshal(f)
	require.NoError(t, err)
	asYAML, err := yaml.Marshal(&f)
	require.NoError(t, err)
	for _, printed := range []string{
		f.String(), f.GoString(), string(asJSON), string(asYAML), f.Redis.SafeURL(),
		fmt.Sprint(f), fmt.Sprintf("%+v", f), fmt.Sprintf("%#v", f), fmt.Sprintf("%v", &f),
		fmt.Sprintf("%v %+v %#v %q", f.Redis, &f.Redis, f.Redis, f.Redis), fmt.Sprintf("%v", []Redis{f.Redis}),
		fmt.Sprintf("%+v", struct{ R Redis }{f.Redis}),
	} {
		require.NotContains(t, printed, "hunter2")
		require.NotContains(t, printed, "worker")
		require.Contains(t, printed, "redis.internal:6380/4")
	}
	require.Contains(t, f.String(), "name: flights")
	require.Contains(t, f.String(), "timeout: 5m0s")
	require.Contains(t, f.Redis.URL, "hunter2", "the value itself stays")
}

func TestSafeURL(t *testing.T) {
	for url, want := range map[string]string{
		"redis://127.0.0.1:6379/0":             "redis://127.0.0.1:6379/0",
		"redis://:secret@h:1/2?x=secret":       "redis://h:1/2",
		"rediss://u:secret@[::1]:6379":         "rediss://[::1]:6379",
		"unix://u:secret@/run/redis.sock?db=3": "unix:///run/redis.sock?db=3",
		"unix:///r.sock?db=secret":             "unix:///r.sock",
		"redis:secret@h":                       "(no URL)",
		"redis://u:1/secret@h/0":               "(no URL)",
		"redis://u:1?secret@h/0":               "(no URL)",
		"redis://u:1#secret@h/0":               "(no URL)",
		"redis://u:%zzsecret@h":                "(no URL)",
		"redis://u:sec ret@h":                  "(no URL)",
	} {
		require.Equal(t, want, Redis{URL: url}.SafeURL(), url)
	}
}

// TestErrorsHoldNoPassword gives each kind of error a configuration with a
// password in it.
func TestErrorsHoldNoPassword(t *testing.T) {
	for _, text := range []string{
		"redis: {url: \"redis://u:secret@h/0\", nope: 1}",
		"redis:\n  url: redis://u:secret@h/0\n nope",
		"redis: redis://u:secret@h/0",
		"redis: [redis://u:secret@h/0]",
		"redis: {url: [\"redis://u:secret@h/0\"]}",
		"redis: {url: {redis://u:secret@h/0: 1}}",
		"redis: {url: \"redis://u:secret@h/0}",
		"redis: {url: \"redis://u:sec%zzret@h/secret\"}",
		"redis: {url: \"redis:secret@h\"}",
		"redis: {url: \"amqp://u:secret@h/0\"}",
		"redis: {url: \"redis://u:secret@h/zero\"}",
		"redis: {url: \"redis://u:secret@h:99999/0\"}",
		"redis: {url: \"redis://u:secret@h:port/0\"}",
		"redis: {url: \"redis://u:secret@h/0\", caFile: /nowhere}",
		"redis: {url: \"redis://u:secret@h/0\", passwordEnv: NOT_SET_ANYWHERE}",
		"redis: {url: \"redis://u:secret@:1/0\"}",
		"redis: {url: \"redis://u:1/secret@h/0\"}",
		"redis: {url: \"redis://u:1?secret@h/0\"}",
		"redis: {url: \"redis://u:secret@a,b/0\"}",
		"redis: {url: \"redis://u:secret@h/0?db=1\"}",
		"redis: {url: \"unix://u:secret@h/r.sock\"}",
		"redis: {url: redis://u:secret@h/0, url: redis://u:secret@h/0}",
	} {
		_, err := Parse([]byte(text))
		require.Error(t, err, text)
		require.NotEmpty(t, problemsOf(t, err))
		require.NotContains(t, err.Error(), "secret", text)
		require.NotContains(t, fmt.Sprintf("%+v", fault.As(err)), "u:secret", text)
	}
}

func TestSecretsFromFilesAndEnvironment(t *testing.T) {
	f := Defaults()
	for _, none := range []func() (string, error){f.RedisPassword, f.APIToken, f.Redis.Password} {
		v, err := none()
		require.NoError(t, err)
		require.Empty(t, v)
	}
	f.Redis.PasswordFile = file(t, "pw", " "+password+" \r\n", 0o600)
	t.Setenv("KEYFRAME_TEST_TOKEN", "t0ken-of-16-bytes")
	f.API.TokenEnv = "KEYFRAME_TEST_TOKEN"
	require.NoError(t, f.Validate())
	v, err := f.RedisPassword()
	require.NoError(t, err)
	require.Equal(t, " "+password+" ", v, "only the end of the line is cut")
	v, err = f.APIToken()
	require.NoError(t, err)
	require.Equal(t, "t0ken-of-16-bytes", v)
	// Read anew: a rotated password counts.
	require.NoError(t, os.WriteFile(f.Redis.PasswordFile, []byte("rotated"), 0o600))
	v, err = f.RedisPassword()
	require.NoError(t, err)
	require.Equal(t, "rotated", v)
}

func TestSecretsThatCannotBeRead(t *testing.T) {
	t.Setenv("KEYFRAME_EMPTY", "")
	for name, c := range map[string]struct {
		api  API
		want string
	}{
		"missing":    {API{TokenFile: filepath.Join(t.TempDir(), "none")}, "can't be read: no such file or directory"},
		"folder":     {API{TokenFile: t.TempDir()}, "is no regular file"},
		"device":     {API{TokenFile: "/dev/zero"}, "is no regular file"},
		"empty":      {API{TokenFile: file(t, "empty", "", 0o600)}, "the file is empty"},
		"blank":      {API{TokenFile: file(t, "blank", " \n", 0o600)}, "the file is empty"},
		"two lines":  {API{TokenFile: file(t, "two", "hunter1\nhunter2\n", 0o600)}, "more than one line"},
		"open":       {API{TokenFile: file(t, "open", "hunter2", 0o666)}, "anybody may write it (mode 0666): chmod o-w"},
		"unset":      {API{TokenEnv: "KEYFRAME_NOT_SET"}, "is not set or empty"},
		"set empty":  {API{TokenEnv: "KEYFRAME_EMPTY"}, "is not set or empty"},
		"both given": {API{TokenFile: "/f", TokenEnv: "KEYFRAME_EMPTY"}, "keep one"},
	} {
		f := Defaults()
		c.api.Listen, c.api.MaxImport = f.API.Listen, f.API.MaxImport
		f.API = c.api
		problems := problemsOf(t, f.Validate())
		require.Len(t, problems, 1, name)
		require.Contains(t, problems[0], c.want, name)
		require.Contains(t, problems[0], "api.token", name)
		require.Contains(t, problems[0], c.api.TokenFile+c.api.TokenEnv[len(c.api.TokenEnv)*min(len(c.api.TokenFile), 1):], name)
		require.NotContains(t, problems[0], "hunter", name)
		if name != "both given" {
			_, err := f.APIToken()
			require.Equal(t, fault.Config, fault.CodeOf(err), name)
			require.ErrorContains(t, err, c.want, name)
			require.NotContains(t, err.Error(), "hunter", name)
		}
	}
}

func TestWarnings(t *testing.T) {
	f := Defaults()
	require.Empty(t, f.Warnings())
	f.Redis.PasswordFile = file(t, "pw", password, 0o644)
	f.API.TokenFile = file(t, "token", "t0ken-of-16-bytes", 0o640)
	f.API.Listen = "0.0.0.0:7070"
	require.NoError(t, f.Validate(), "mounted secrets are often readable by all")
	warnings := f.Warnings()
	require.Len(t, warnings, 2)
	require.Contains(t, warnings[0], "redis.passwordFile")
	require.Contains(t, warnings[0], "mode 0644")
	require.Contains(t, warnings[1], "in the clear")
	for _, w := range warnings {
		require.NotContains(t, w, password)
	}
}
