package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

// uncommented is the part of the full example that begins with "# name:".
func uncommented(t *testing.T, text, name string) string {
	t.Helper()
	var out []string
	for line := range strings.Lines(text) {
		bare, comment := strings.CutPrefix(line, "# ")
		switch {
		case comment && bare == name+":\n":
			out = append(out, bare)
		case len(out) > 0 && !comment:
			return strings.Join(out, "")
		case len(out) > 0:
			out = append(out, bare)
		}
	}
	require.NotEmpty(t, out, "the example shows %s", name)
	return strings.Join(out, "")
}

func TestTheAlarmsOfTheFullExampleLoad(t *testing.T) {
	text := uncommented(t, readExample(t, "keyframe.yaml"), "alarms")
	for path, content := range map[string]string{"/etc/keyframe/chat-url": "https://chat.example.com/hooks/s3cret", "/etc/keyframe/chat-token": "Bearer t0ken"} {
		require.Contains(t, text, path)
		text = strings.ReplaceAll(text, path, file(t, "secret", content+"\n", 0o600))
	}
	f, err := Parse([]byte(text))
	require.NoError(t, err)
	require.Empty(t, f.Warnings())
	chat, pager := f.Alarms.Hooks[0].WithDefaults(0), f.Alarms.Hooks[1].WithDefaults(1)
	u, err := chat.Address()
	require.NoError(t, err)
	require.Equal(t, "https://chat.example.com/hooks/s3cret", u.String())
	token, err := chat.Headers[0].Read()
	require.NoError(t, err)
	require.Equal(t, "Bearer t0ken", token)
	require.Equal(t, []AlarmGroup{AlarmFailure, AlarmRecovery, AlarmStateLoss, AlarmDrill, AlarmOverdue}, chat.Events)
	require.Equal(t, chat.Timeout, pager.Timeout, "it says the defaults")
	require.Equal(t, chat.Tries, pager.Tries)
	require.Equal(t, chat.MaxAge, pager.MaxAge)
	require.Equal(t, []string{"/usr/local/bin/page", "--severity", "high"}, pager.Command)
	beat := f.Alarms.Heartbeat
	require.Equal(t, beat, Heartbeat{URL: beat.URL, FailSuffix: "/fail"}.WithDefaults(), "it says the defaults")
	require.Equal(t, time.Minute, time.Duration(beat.Every))
}

func TestWrongAlarmsAreReported(t *testing.T) {
	secret := file(t, "url", "no url with geheim\n", 0o600)
	for text, want := range map[string]string{
		"hooks: [{}]":                                                             "alarms.hooks[0]: say who is told",
		"hooks: [{url: 'ftp://h/x'}]":                                             "alarms.hooks[0].url: its scheme is not known",
		"hooks: [{url: 'geheim'}]":                                                "alarms.hooks[0].url: it is no URL",
		"hooks: [{url: 'http://h:0/geheim'}]":                                     "alarms.hooks[0].url: its port",
		"hooks: [{urlFile: '" + secret + "'}]":                                    "what it holds: it is no URL",
		"hooks: [{urlEnv: NOT_SET_ANYWHERE}]":                                     `alarms.hooks[0].urlEnv: "NOT_SET_ANYWHERE": the environment variable is not set`,
		"hooks: [{url: 'http://h', urlEnv: X}]":                                   "urlFile or urlEnv is set too",
		"hooks: [{url: 'http://h', command: [x]}]":                                "there is a URL too",
		"hooks: [{command: ['']}]":                                                "give the path of a program",
		"hooks: [{command: x}]":                                                   "want a list",
		"hooks: [{command: [x], headers: [{name: A, value: b}]}]":                 "they are for URLs",
		"hooks: [{command: [x], passEnv: ['A=b']}]":                               "alarms.hooks[0].passEnv[0]",
		"hooks: [{url: 'http://h', passEnv: [A]}]":                                "it is for commands",
		"hooks: [{url: 'http://h', events: [failures]}]":                          `alarms.hooks[0].events[0]: "failures": want one of failure, recovery, state-loss, drill, overdue, health, all`,
		"hooks: [{url: 'http://h', jobs: ['']}]":                                  "alarms.hooks[0].jobs[0]",
		"hooks: [{url: 'http://h', timeout: -1s}]":                                "alarms.hooks[0].timeout",
		"hooks: [{url: 'http://h', maxAge: 1ms}]":                                 "alarms.hooks[0].maxAge",
		"hooks: [{url: 'http://h', tries: -1}]":                                   "give 1 to 1000",
		"hooks: [{url: 'http://h'}, {name: hook1, command: [x]}]":                 "alarms.hooks[0] has the same name",
		"hooks: [{url: 'http://h', headers: [{name: 'A B', value: x}]}]":          "it is no name of a header",
		"hooks: [{url: 'http://h', headers: [{name: content-type, value: x}]}]":   "it is set already",
		"hooks: [{url: 'http://h', headers: [{name: A}]}]":                        "say where its value is",
		"hooks: [{url: 'http://h', headers: [{name: A, value: x, env: y}]}]":      "keep one of value, file and env",
		"hooks: [{url: 'http://h', headers: [{name: A, value: \"x\\ny\"}]}]":      "no HTTP header carries",
		"hooks: [{url: 'http://h', headers: [{name: A, env: NOT_SET_ANYWHERE}]}]": "not set or empty",
		"heartbeat: {every: 1m}":                                                  "alarms.heartbeat: say what is asked",
		"heartbeat: {url: 'http://h', every: 10ms}":                               "alarms.heartbeat.every",
		"heartbeat: {url: 'http://h', method: PUT}":                               "want one of GET, POST",
		"heartbeat: {url: 'http://h', failSuffix: '?fail'}":                       "alarms.heartbeat.failSuffix",
		"heartbeat: {uri: x}":                                                     "known are url, urlFile",
	} {
		_, err := Parse([]byte("alarms: {" + text + "}\n"))
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "geheim", text)
	}
	_, err := Parse([]byte("jobs: [{name: a, checkpoint: {tolerableMisses: 101}}]\n"))
	require.ErrorContains(t, err, "jobs[0].checkpoint.tolerableMisses: 101: give 0 to 100")
	_, err = Parse([]byte("jobs: [{name: a, checkpoint: {tolerableMisses: -1}}]\n"))
	require.ErrorContains(t, err, "jobs[0].checkpoint.tolerableMisses: -1")
	require.Equal(t, 2, Checkpoint{}.Misses(), "a job that was kept by an older version")
}

// Many services put the secret into the URL's path.
func TestSecretsOfAlarmsAreNotPrinted(t *testing.T) {
	f, err := Parse([]byte(`
alarms:
  hooks:
    - {url: "https://user:geheim@chat.example.com:8443/geheim?token=geheim", headers: [{name: Authorization, value: geheim}]}
  heartbeat: {url: "https://beats.example.com/geheim", headers: [{name: X-Key, value: geheim}]}
`))
	require.NoError(t, err)
	asJSON, err := json.Marshal(f)
	require.NoError(t, err)
	asYAML, err := yaml.Marshal(&f)
	require.NoError(t, err)
	for _, printed := range []string{
		f.String(), string(asJSON), string(asYAML), fmt.Sprintf("%+v %#v %v", f, f, &f),
		fmt.Sprintf("%v %+v %#v %q", f.Alarms, f.Alarms, &f.Alarms, f.Alarms),
	} {
		require.NotContains(t, printed, "geheim")
		require.Contains(t, printed, "https://chat.example.com:8443")
		require.Contains(t, printed, "https://beats.example.com")
	}
	for _, text := range []string{"geheim", "redis://geheim", "https:geheim", "https://u:%zzgeheim@h", "https:///geheim"} {
		require.Equal(t, "(no URL)", SafeWebURL(text))
	}
	u, err := f.Alarms.Hooks[0].Address()
	require.NoError(t, err)
	require.Equal(t, "/geheim", u.Path, "the value itself stays")
}

func TestAFileOfASecretThatAnybodyMayReadIsWarnedOf(t *testing.T) {
	path := file(t, "url", "https://h/x\n", 0o644)
	f, err := Parse([]byte("alarms: {heartbeat: {urlFile: '" + path + "'}, hooks: [{urlFile: '" + path + "'}]}\n"))
	require.NoError(t, err)
	require.Len(t, f.Warnings(), 2)
	require.Contains(t, f.Warnings()[0], "alarms.hooks[0].urlFile")
}
