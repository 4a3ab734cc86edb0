package redis

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"keyframe/statebackend"
)

// opNames are the commands as the server calls them. Their key comes first.
var opNames = map[statebackend.Op]string{
	statebackend.OpHGet: "HGET", statebackend.OpHSet: "HSET", statebackend.OpHSetNX: "HSETNX",
	statebackend.OpHDel: "HDEL", statebackend.OpHExists: "HEXISTS", statebackend.OpHLen: "HLEN",
	statebackend.OpRPush: "RPUSH", statebackend.OpLLen: "LLEN",
	statebackend.OpSAdd: "SADD", statebackend.OpSRem: "SREM", statebackend.OpSIsMember: "SISMEMBER",
	statebackend.OpSCard: "SCARD", statebackend.OpZAdd: "ZADD", statebackend.OpZRem: "ZREM",
	statebackend.OpGet: "GET", statebackend.OpSet: "SET", statebackend.OpDel: "DEL",
	statebackend.OpPExpireAt: "PEXPIREAT", statebackend.OpType: "TYPE",
}

// Do runs one command as it is, several between MULTI and EXEC. A call whose
// answer was lost (ErrUnreachable) may have been done; it is not sent again.
func (b *Backend) Do(ctx context.Context, cmds ...statebackend.Cmd) ([]statebackend.Reply, error) {
	if len(cmds) == 0 {
		return nil, nil
	}
	sent := make([]*redis.Cmd, len(cmds))
	for i, c := range cmds {
		args, err := commandArgs(c)
		if err != nil {
			return nil, err
		}
		sent[i] = redis.NewCmd(ctx, args...)
	}
	err := b.send(ctx, sent)
	replies := make([]statebackend.Reply, len(cmds))
	for i, cmd := range sent {
		cmdErr := cmd.Err()
		if cmdErr != nil && !errors.Is(cmdErr, redis.Nil) && !redis.IsExecAbortError(cmdErr) {
			// The command's own refusal says more than EXEC's.
			return nil, b.keyError(cmds[i], cmdErr)
		}
		if replies[i], cmdErr = commandReply(cmds[i], cmd); cmdErr != nil && err == nil {
			return nil, b.keyError(cmds[i], cmdErr)
		}
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, b.mapError(err, fmt.Sprintf("%d commands from %s on", len(cmds), opNames[cmds[0].Op]))
	}
	return replies, nil
}

func (b *Backend) send(ctx context.Context, sent []*redis.Cmd) error {
	if len(sent) == 1 {
		return b.client.Process(ctx, sent[0])
	}
	_, err := b.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for _, cmd := range sent {
			// A pipeline only queues here: what goes wrong comes from Exec.
			_ = p.Process(ctx, cmd)
		}
		return nil
	})
	return err
}

func (b *Backend) keyError(c statebackend.Cmd, err error) error {
	return &statebackend.KeyError{Key: []byte(c.Key), Op: opNames[c.Op], Err: b.mapError(err, "state")}
}

func commandArgs(c statebackend.Cmd) ([]any, error) {
	name, ok := opNames[c.Op]
	if !ok {
		return nil, fmt.Errorf("%w: command %d", statebackend.ErrUnsupported, c.Op)
	}
	args := make([]any, 0, 2+len(c.Args))
	args = append(args, name, c.Key)
	for _, a := range c.Args {
		args = append(args, a)
	}
	return args, nil
}

// commandReply turns what go-redis gives into a Reply.
func commandReply(c statebackend.Cmd, cmd *redis.Cmd) (statebackend.Reply, error) {
	if errors.Is(cmd.Err(), redis.Nil) {
		return statebackend.Reply{Nil: true}, nil
	}
	switch v := cmd.Val().(type) {
	case int64:
		return statebackend.Reply{Int: v}, nil
	case string:
		if c.Op == statebackend.OpSet {
			return statebackend.Reply{}, nil // OK
		}
		return statebackend.Reply{Bytes: []byte(v)}, nil
	}
	return statebackend.Reply{}, fmt.Errorf("unexpected reply of type %T", cmd.Val())
}
