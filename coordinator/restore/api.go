package restore

import (
	"context"
	"errors"

	"keyframe/coordinator/config"
)

var errNotYet = errors.New("being written")

func (e *Executor) Plan(ctx context.Context, req Request, p Progress) (Plan, error) {
	return Plan{}, errNotYet
}
func (e *Executor) Run(ctx context.Context, req Request, p Progress) (Result, error) {
	return Result{}, errNotYet
}
func (e *Executor) Resume(ctx context.Context, job config.Job) ([]Resumed, error) {
	return nil, errNotYet
}
func (e *Executor) Force(ctx context.Context, job config.Job) (Resumed, error) {
	return Resumed{}, errNotYet
}
