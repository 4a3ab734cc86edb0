package track

import (
	"maps"
	"strings"

	"github.com/stretchr/testify/require"

	"keyframe/statebackend/redis/resp"
)

// looked is all that a key shows: for hashes, sets and sorted sets each
// element by itself, for the other types one element with all.
type looked struct {
	kind     string
	expiry   int64
	elements map[string]string
}

// lookScript reads every key of a database at one instant, so that no key
// expires between two reads. Consumers' times of being seen aren't replicated
// (and mean nothing to a copy), nor is a stream's layout in memory.
const lookScript = `
local transient = {['seen-time']=true, ['active-time']=true, ['radix-tree-keys']=true, ['radix-tree-nodes']=true}
local function clean(v)
  if type(v) ~= 'table' then return v end
  local out = {}
  local i = 1
  while i <= #v do
    if type(v[i]) == 'string' and transient[v[i]] then i = i + 2
    else out[#out+1] = clean(v[i]); i = i + 1 end
  end
  return out
end
-- KEYS hides a key that has expired; only a look at it removes it, for replicas too.
for _, k in ipairs(ARGV) do redis.call('EXISTS', k) end
local all = {}
for _, k in ipairs(redis.call('KEYS', '*')) do
  local t = redis.call('TYPE', k).ok
  local e = {}
  if t == 'hash' then e = redis.call('HGETALL', k)
  elseif t == 'set' then
    for _, m in ipairs(redis.call('SMEMBERS', k)) do e[#e+1] = m; e[#e+1] = '' end
  elseif t == 'zset' then e = redis.call('ZRANGE', k, 0, -1, 'WITHSCORES')
  elseif t == 'list' then e = {'', cmsgpack.pack(redis.call('LRANGE', k, 0, -1))}
  elseif t == 'stream' then
    e = {'', cmsgpack.pack({redis.call('XRANGE', k, '-', '+'), clean(redis.call('XINFO', 'STREAM', k, 'FULL'))})}
  elseif t == 'string' then e = {'', redis.call('GET', k)} end
  all[#all+1] = {k, t, redis.call('PEXPIRETIME', k), e}
end
return all`

const lookLimit = 64 << 20

// look reads all keys that concern the scope.
func look(t require.TestingT, c *resp.Conn, s Scope) map[string]looked {
	v, err := c.Call(lookLimit, append([]string{"EVAL", lookScript, "0"}, allKeys...)...)
	require.NoError(t, err)
	extra := nameSet(s.Extra)
	all := map[string]looked{}
	for _, row := range v.Array {
		name := row.Array[0].String()
		if _, ok := extra[name]; !ok && !strings.HasPrefix(name, s.Root+":") {
			continue
		}
		k := looked{kind: row.Array[1].String(), expiry: row.Array[2].Int, elements: map[string]string{}}
		list := row.Array[3].Array
		for i := 0; i+1 < len(list); i += 2 {
			k.elements[list[i].String()] = list[i+1].String()
		}
		all[name] = k
	}
	return all
}

// followed is what a copy becomes that knows before, and takes from after only
// what is marked. It is after exactly if the marks are complete.
func followed(before, after map[string]looked, m Marks) map[string]looked {
	if m.All {
		return after
	}
	all := maps.Clone(before)
	for name, key := range m.Keys {
		now, there := after[name]
		k := all[name]
		if key.Whole {
			k = now
		} else {
			k = takeFields(k, now, key.Fields)
		}
		if key.Whole && there || len(k.elements) > 0 {
			all[name] = k
		} else {
			delete(all, name)
		}
	}
	return all
}

func takeFields(k, now looked, fields map[string]struct{}) looked {
	elements := maps.Clone(k.elements)
	if elements == nil {
		elements = map[string]string{}
	}
	for f := range fields {
		delete(elements, f)
	}
	kind := k.kind
	if len(elements) == 0 {
		kind = now.kind
	}
	if now.kind == "hash" || now.kind == "set" || now.kind == "zset" {
		for f := range fields {
			if v, ok := now.elements[f]; ok {
				elements[f] = v
			}
		}
	}
	return looked{kind: kind, expiry: now.expiry, elements: elements}
}
