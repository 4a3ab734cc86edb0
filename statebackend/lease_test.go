package statebackend

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestARefusalNamesJobTokensAndRemedy: what a person needs who reads it in a log.
func TestARefusalNamesJobTokensAndRemedy(t *testing.T) {
	job := Job{Prefix: "streaming:runtime", Name: "flights"}
	since := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	full := Leader{Owner: Owner{ID: "c0ffee", Host: "box", PID: 77, Address: "10.0.0.7:7070"}, Token: 9, Since: since}
	bare := Leader{Owner: Owner{ID: "c0ffee", Address: "10.0.0.7:7070"}, Token: 9, Since: since}
	for want, e := range map[string]*FencedError{
		"it is led by coordinator c0ffee (box, process 77, API at 10.0.0.7:7070) since 2026-05-04 03:02:01Z, token 9, and this one's token is 8: ask that one, at 10.0.0.7:7070": {Job: job, Token: 8, Leader: full},
		"it is led by coordinator c0ffee (API at 10.0.0.7:7070) since 2026-05-04 03:02:01Z, token 9, and this one has no token: ask that one, at 10.0.0.7:7070":                  {Job: job, Leader: bare},
		"it is led by coordinator c0ffee (box) since 2026-05-04 03:02:01Z, token 9, and this one has no token: ask that one":                                                     {Job: job, Leader: Leader{Owner: Owner{ID: "c0ffee", Host: "box"}, Token: 9, Since: since}},
		"nobody leads it now; the last token was 9, and this one's token is 8: try again, it asks for the lease by itself":                                                       {Job: job, Token: 8, Leader: Leader{Token: 9}},
	} {
		require.EqualError(t, fmt.Errorf("%w", e), `job "flights" (prefix "streaming:runtime"): this coordinator doesn't lead the job: `+want)
		require.ErrorIs(t, e, ErrFenced)
		require.ErrorIs(t, e, ErrNotLeader)
	}
}

// TestALeaseIsLostWhenNobodyElseHasLedSince: a state store that came back empty
// or from an older file, or a lease that somebody deleted.
func TestALeaseIsLostWhenNobodyElseHasLedSince(t *testing.T) {
	for token, lost := range map[uint64]bool{0: true, 4: true, 5: true, 6: false, 128: false} {
		e := &FencedError{Token: 5, Leader: Leader{Token: token}}
		require.Equal(t, lost, e.Lost(), "the last token is %d", token)
		e.Leader.ID = "other"
		require.False(t, e.Lost(), "led with token %d", token)
	}
}
