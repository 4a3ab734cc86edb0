package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDrillsHaveAPlaceAndASchedule(t *testing.T) {
	f, err := Parse([]byte("drill: {redis: {url: 'redis://scratch:6380/1'}}\njobs: [{name: a, drill: {schedule: '0 4 * * *'}}, {name: b}]\n"))
	require.NoError(t, err)
	require.False(t, f.Drill.Beside())
	require.Equal(t, "0 4 * * *", f.Jobs[0].Drill.Schedule)
	require.Empty(t, f.Jobs[1].Drill.Schedule)
	f, err = Parse([]byte("jobs: [{name: a}]\n"))
	require.NoError(t, err)
	require.True(t, f.Drill.Beside())

	for text, want := range map[string]string{
		"drill: {redis: {url: 'http://x'}}":                            "drill.redis.url",
		"drill: {redis: {passwordEnv: NOT_SET_ANYWHERE}}":              "drill.redis",
		"drill: {redis: {url: 'redis://user@h:1/0'}}":                  "set drill.redis.passwordFile or drill.redis.passwordEnv",
		"jobs: [{name: a, drill: {schedule: 'every day'}}]":            "jobs[0].drill.schedule",
		"jobs: [{name: a, drill: {schedule: '@every 10ms'}}]":          "jobs[0].drill.schedule",
		"jobs: [{name: a, drill: {schedul: '@daily'}}]":                "known are schedule",
		"drill: {redis: {url: 'redis://h:1/0', tracking: sometimes}}":  "drill.redis.tracking",
		"drill: {redis: {url: 'redis://h:1/0', caFile: /nowhere.pem}}": "drill.redis",
	} {
		_, err := Parse([]byte(text + "\n"))
		require.ErrorContains(t, err, want, text)
	}
}

// A password of the drills' server is shown nowhere.
func TestTheDrillsPasswordIsNotShown(t *testing.T) {
	f, err := Parse([]byte("drill: {redis: {url: 'redis://u:geheim@h:1/0'}}\n"))
	require.NoError(t, err)
	require.NotContains(t, f.String(), "geheim")
	require.Contains(t, f.String(), "redis://h:1/0")
	f.Drill.Redis.PasswordFile = "/nowhere"
	_, err = f.Drill.Password()
	require.ErrorContains(t, err, "drill.redis.passwordFile")
}
