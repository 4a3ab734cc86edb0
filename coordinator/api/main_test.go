package api

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(tests *testing.M) { goleak.VerifyTestMain(tests) }
