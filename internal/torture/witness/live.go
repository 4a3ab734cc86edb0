package witness

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// Sizes of what is asked for at once.
const (
	scanCount = 512
	batchKeys = 128
	wholeMost = 1024 // elements of a key that is read with one command
)

// ErrMoved (wrapped) says that a key changed while it was read: hold the
// writers.
var ErrMoved = errors.New("it changed while it was read")

// Live reads a job's state from a server, and every other key of the database
// as foreign. root is "{prefix}:{job}". Keys of 1024 elements and fewer are
// read with one command, larger ones in pages. It writes nothing. The writers
// must stand still for the result to be one moment's; what is noticed of one
// that doesn't gives ErrMoved.
func Live(ctx context.Context, c *redis.Client, root string) (state *State, foreign map[string]Entry, err error) {
	l := &looker{ctx: ctx, c: c}
	state = &State{Keys: map[string]Entry{}, Registry: map[string]string{}, Others: map[string]string{}}
	if state.Names, err = l.scan("SSCAN", root+":"+tailIndex); err != nil {
		return nil, nil, fmt.Errorf("witness: index of %s: %w", root, err)
	}
	indexed := make(map[string]bool, len(state.Names))
	for _, name := range state.Names {
		indexed[name] = true
	}
	names, err := l.scan("SCAN", "")
	if err != nil {
		return nil, nil, fmt.Errorf("witness: keys: %w", err)
	}
	// Between the two scans a key may have come; an indexed one is read anyway.
	names = append(names, state.Names...)
	slices.Sort(names)
	all, err := l.entries(slices.Compact(names))
	if err != nil {
		return nil, nil, fmt.Errorf("witness: %w", err)
	}
	foreign = map[string]Entry{}
	for name, e := range all {
		tail, book := bookkeeping(root, name)
		switch {
		case book && tail == tailRegistry && e.Type == "hash":
			if state.Registry, err = e.Fields(); err != nil {
				return nil, nil, fmt.Errorf("witness: registry of %s: %w", root, err)
			}
		case book && tail != tailIndex:
			state.Others[tail] = e.Text()
		case !book && !(indexed[name] && owned(root, name)):
			foreign[name] = e
		}
		if indexed[name] {
			state.Keys[name] = e
		}
	}
	return state, foreign, nil
}

// looker reads from one server.
type looker struct {
	ctx context.Context
	c   *redis.Client
}

// scan gives all that SCAN (without a key), SSCAN, HSCAN or ZSCAN lists: each
// item once, sorted; of the last two "item\x00" is not needed, see pairs.
func (l *looker) scan(command, key string) (items []string, err error) {
	seen := map[string]bool{}
	err = l.pages(command, key, func(page []string) {
		for _, s := range page {
			seen[s] = true
		}
	})
	for s := range seen {
		items = append(items, s)
	}
	slices.Sort(items)
	return items, err
}

// pages calls fn for each page of a scan until its cursor is 0 again.
func (l *looker) pages(command, key string, fn func(page []string)) error {
	cursor := "0"
	for {
		args := []any{command}
		if command != "SCAN" {
			args = append(args, key)
		}
		reply, err := l.c.Do(l.ctx, append(args, cursor, "COUNT", scanCount)...).Slice()
		if err != nil {
			return fmt.Errorf("%s %q: %w", command, key, err)
		}
		if len(reply) != 2 {
			return fmt.Errorf("%s %q: a reply of %d parts", command, key, len(reply))
		}
		page, err := texts(reply[1])
		if err != nil {
			return fmt.Errorf("%s %q: %w", command, key, err)
		}
		fn(page)
		if cursor = fmt.Sprint(reply[0]); cursor == "0" {
			return nil
		}
	}
}

// texts makes strings of a reply that is a list of strings, or of lists of
// them, or a map.
func texts(reply any) (out []string, err error) {
	switch v := reply.(type) {
	case string:
		return []string{v}, nil
	case float64:
		return []string{strconv.FormatFloat(v, 'g', -1, 64)}, nil
	case []any:
		for _, one := range v {
			more, err := texts(one)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
		return out, nil
	case map[any]any:
		for k, value := range v {
			more, err := texts([]any{k, value})
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
		return out, nil
	}
	return nil, fmt.Errorf("a reply of type %T", reply)
}

// known is what the server says of a key before it is read.
type known struct {
	name, kind string
	expire     int64
	count      int64
}

// countOf are the commands that count a key's elements, by its type.
var countOf = map[string]string{"hash": "HLEN", "list": "LLEN", "set": "SCARD", "zset": "ZCARD"}

// entries reads keys; those that don't exist are left out.
func (l *looker) entries(names []string) (map[string]Entry, error) {
	out := make(map[string]Entry, len(names))
	for part := range slices.Chunk(names, batchKeys) {
		all, err := l.heads(part)
		if err != nil {
			return nil, err
		}
		if err := l.bodies(all, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// pipe sends commands at once and gives their replies; a nil reply is nil.
func (l *looker) pipe(commands [][]any) ([]any, error) {
	if len(commands) == 0 {
		return nil, nil
	}
	p := l.c.Pipeline()
	asked := make([]*redis.Cmd, len(commands))
	for i, args := range commands {
		asked[i] = p.Do(l.ctx, args...)
	}
	if _, err := p.Exec(l.ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	out := make([]any, len(asked))
	for i, cmd := range asked {
		v, err := cmd.Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("%v %q: %w", commands[i][0], commands[i][1], err)
		}
		out[i] = v
	}
	return out, nil
}

// heads asks for type and expiry, then for the counts.
func (l *looker) heads(names []string) (all []known, err error) {
	var ask [][]any
	for _, name := range names {
		ask = append(ask, []any{"TYPE", name}, []any{"PEXPIRETIME", name})
	}
	replies, err := l.pipe(ask)
	if err != nil {
		return nil, err
	}
	ask = nil
	for i, name := range names {
		kind, ok1 := replies[2*i].(string)
		at, ok2 := replies[2*i+1].(int64)
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("key %q: its type is %v, its expiry %v", name, replies[2*i], replies[2*i+1])
		}
		if kind == "none" || at == -2 { // -2: no such key
			continue
		}
		all = append(all, known{name: name, kind: kind, expire: max(0, at), count: 1}) // -1: no expiry
		if command := countOf[kind]; command != "" {
			ask = append(ask, []any{command, name})
		}
	}
	if replies, err = l.pipe(ask); err != nil {
		return nil, err
	}
	at := 0
	for i := range all {
		if countOf[all[i].kind] != "" {
			all[i].count, _ = replies[at].(int64) // anything else is found by the comparison
			at++
		}
	}
	return all, nil
}

// whole is the command that reads a key with one reply.
func (k known) whole() []any {
	switch k.kind {
	case "string":
		return []any{"GET", k.name}
	case "hash":
		return []any{"HGETALL", k.name}
	case "list":
		return []any{"LRANGE", k.name, 0, -1}
	case "set":
		return []any{"SMEMBERS", k.name}
	case "zset":
		return []any{"ZRANGE", k.name, 0, -1, "WITHSCORES"}
	}
	return []any{"DUMP", k.name}
}

func (l *looker) bodies(all []known, out map[string]Entry) error {
	var ask [][]any
	var small []known
	for _, k := range all {
		if k.count > wholeMost {
			flat, err := l.paged(k)
			if err != nil {
				return err
			}
			if err := k.put(flat, out); err != nil {
				return err
			}
			continue
		}
		small, ask = append(small, k), append(ask, k.whole())
	}
	replies, err := l.pipe(ask)
	if err != nil {
		return err
	}
	for i, k := range small {
		if replies[i] == nil { // GET or DUMP of a key whose time has come
			continue
		}
		flat, err := texts(replies[i])
		if err != nil {
			return fmt.Errorf("key %q: %w", k.name, err)
		}
		if err := k.put(flat, out); err != nil {
			return err
		}
	}
	return nil
}

// paged reads a key of many elements in pages, each of its items once.
func (l *looker) paged(k known) (flat []string, err error) {
	if k.kind == "list" {
		for at := int64(0); at < k.count; at += wholeMost {
			reply, err := l.c.Do(l.ctx, "LRANGE", k.name, at, at+wholeMost-1).Slice()
			if err != nil {
				return nil, fmt.Errorf("list %q: %w", k.name, err)
			}
			page, err := texts(reply)
			if err != nil {
				return nil, fmt.Errorf("list %q: %w", k.name, err)
			}
			flat = append(flat, page...)
		}
		return flat, nil
	}
	command := map[string]string{"hash": "HSCAN", "set": "SSCAN", "zset": "ZSCAN"}[k.kind]
	if k.kind == "set" {
		return l.scan(command, k.name)
	}
	items := map[string]string{}
	err = l.pages(command, k.name, func(page []string) {
		for i := 0; i+1 < len(page); i += 2 {
			items[page[i]] = page[i+1]
		}
	})
	for item, value := range items {
		flat = append(flat, item, value)
	}
	return flat, err
}

// put makes an entry of what was read. A key whose time came in between is
// left out.
func (k known) put(flat []string, out map[string]Entry) error {
	e := Entry{Type: k.kind, ExpireAt: k.expire}
	switch k.kind {
	case "hash", "zset":
		for i := 0; i+1 < len(flat); i += 2 {
			if k.kind == "hash" {
				e.Elements = append(e.Elements, HashText(flat[i], flat[i+1]))
				continue
			}
			score, err := strconv.ParseFloat(flat[i+1], 64)
			if err != nil || math.IsNaN(score) {
				return fmt.Errorf("zset %q: score %q of %q: %w", k.name, flat[i+1], flat[i], err)
			}
			e.Elements = append(e.Elements, ScoreText(score, flat[i]))
		}
	default:
		for _, s := range flat {
			e.Elements = append(e.Elements, StringText(s))
		}
	}
	if len(e.Elements) == 0 && k.expire > 0 {
		return nil
	}
	if int64(len(e.Elements)) != k.count {
		return fmt.Errorf("key %q: %d elements were read, the server counted %d: %w", k.name, len(e.Elements), k.count, ErrMoved)
	}
	out[k.name] = e.sorted()
	return nil
}
