package config

import (
	"errors"
	"fmt"
)

// Reread reads the secrets of all tokens again, for a daemon that runs. A token
// that can't be read any more, or has become a bad one, is left out and told:
// who removes its file withdraws it. Texts of the problems hold no secret.
func (a API) Reread() (keys []Key, problems []string) {
	var before []tokenAt
	for _, t := range a.all() {
		field, _ := t.place()
		v, err := t.secret.read()
		if err == nil && v == "" {
			err = errors.New("it is empty")
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("token %q (%s): %v", t.Name, field, err))
			continue
		}
		var l list
		t.checkSecret(&l, before)
		if len(l.all) > 0 {
			problems = append(problems, fmt.Sprintf("token %q (%s): %s", t.Name, field, l.all[0].Message))
			continue
		}
		before = append(before, t)
		keys = append(keys, Key{Name: t.Name, Role: t.Role, Secret: v})
	}
	return keys, problems
}
