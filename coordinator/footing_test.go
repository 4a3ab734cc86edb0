package coordinator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/cut"
	"keyframe/snapshot"
)

// Whatever makes tracking fail again and again, a FLUSHDB each moment in
// another database for one, checkpoints go on in grade auto: every second
// attempt does without. A grade that was asked for stays.
func TestAttemptsThatLoseTrackingAreFollowedByOneWithout(t *testing.T) {
	j := &job{}
	j.spec.Checkpoint.Grade = snapshot.GradeAuto
	asked := func(req cut.Request) cut.Request {
		j.place(&req)
		return req
	}
	j.failedBy(snapshot.FailTracking)
	require.Empty(t, asked(cut.Request{}).Grade, "one may be a link that broke")
	j.failedBy(snapshot.FailConnection)
	j.failedBy(snapshot.FailTracking)
	require.Empty(t, asked(cut.Request{}).Grade, "not in a row")
	j.failedBy(snapshot.FailTracking)
	req := asked(cut.Request{})
	require.Equal(t, snapshot.GradePaused, req.Grade)
	require.Contains(t, req.NoBase.Text, "the last 2 attempts")
	require.Equal(t, snapshot.GradePrecopy, asked(cut.Request{Grade: snapshot.GradePrecopy}).Grade)
	require.Empty(t, asked(cut.Request{VerifyLive: true}).Grade)

	j.footing.take(nil)
	require.Empty(t, asked(cut.Request{}).Grade)
	j.failedBy(snapshot.FailTracking)
	require.Equal(t, snapshot.GradePaused, asked(cut.Request{}).Grade)
	j.footing.take(nil)
	j.footing.take(nil)
	j.failedBy(snapshot.FailTracking)
	require.Empty(t, asked(cut.Request{}).Grade, "tracking has worked in between")

	j.spec.Checkpoint.Grade = snapshot.GradePrecopy
	j.failedBy(snapshot.FailTracking)
	require.Empty(t, asked(cut.Request{}).Grade, "the job insists")
}
