package api

import (
	"keyframe/coordinator/fault"
	"keyframe/keygroups"
)

// Places says where plain text keys belong under a rule and a parallelism.
func Places(rule keygroups.Rule, parallelism int, keys []string) ([]KeyPlace, error) {
	if err := rule.Validate(parallelism); err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "key groups")
	}
	places := make([]KeyPlace, 0, len(keys))
	for _, k := range keys {
		hash, group, err := rule.GroupOfText(k)
		if err != nil {
			return nil, fault.Wrap(err, fault.Usage, "", "key %q", k)
		}
		subtask, err := rule.Owner(group, parallelism)
		if err != nil {
			return nil, fault.Wrap(err, fault.Usage, "", "key %q", k)
		}
		places = append(places, KeyPlace{Key: k, Hash: hash, Group: group, Subtask: subtask})
	}
	return places, nil
}
