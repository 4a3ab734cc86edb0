package statebackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// The example of the State module's document: a keyed stream a, b, a that
// counts each key.
func Example() {
	store := memory.New(memory.Options{Name: "example"})
	ctx := context.Background()
	count, err := statebackend.NewValueState(
		statebackend.Space{
			Store: store,
			Job:   statebackend.Job{Prefix: statebackend.DefaultPrefix, Name: "words"},
			Scope: statebackend.Scope{Group: "counters", Topic: "words", Operator: "count"},
		},
		statebackend.Descriptor[int]{Name: "count", Default: new(0)})
	if err != nil {
		fmt.Println(err)
		return
	}
	var out []string
	for _, word := range []string{"a", "b", "a"} {
		key := statebackend.StringKey(word)
		n, err := count.Get(ctx, key)
		if err == nil {
			n++
			err = count.Update(ctx, key, n)
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		out = append(out, fmt.Sprintf("%s:%d", word, n))
	}
	fmt.Println(strings.Join(out, ", "))
	// Output: a:1, b:1, a:2
}

// Un-keyed use, as the document's RedisStateBackend: the solo identity.
func ExampleSoloSpace() {
	store := memory.New(memory.Options{})
	ctx := context.Background()
	job := statebackend.Job{Prefix: statebackend.DefaultPrefix, Name: "my-job"}
	counter, err := statebackend.NewValueState(statebackend.SoloSpace(store, job), statebackend.Descriptor[int]{Name: "session-counter"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := counter.Get(ctx, statebackend.SoloKey); errors.Is(err, statebackend.ErrAbsent) {
		fmt.Println("nothing yet")
	}
	if err := counter.Update(ctx, statebackend.SoloKey, 1); err != nil {
		fmt.Println(err)
		return
	}
	for _, key := range store.Keys() {
		if strings.Contains(string(key), ":state:") {
			fmt.Println(string(key))
		}
	}
	// Output:
	// nothing yet
	// streaming:runtime:my-job:cg:standalone:topic:standalone:p:0:state:standalone:session-counter
}

// State and the position of the source change in one step.
func ExampleBatch() {
	store := memory.New(memory.Options{})
	ctx := context.Background()
	space := statebackend.SoloSpace(store, statebackend.Job{Prefix: statebackend.DefaultPrefix, Name: "sums"})
	sum, err1 := statebackend.NewValueState(space, statebackend.Descriptor[int64]{Name: "sum"})
	position, err2 := statebackend.NewOperatorList(space, statebackend.Descriptor[string]{Name: "position"})
	if err := errors.Join(err1, err2); err != nil {
		fmt.Println(err)
		return
	}
	b := statebackend.NewBatch(store)
	queued := statebackend.WithBatch(ctx, b)
	err := errors.Join(
		sum.Update(queued, statebackend.SoloKey, 42),
		position.Update(queued, []string{"1700000000000-7"}))
	if err == nil {
		err = b.Commit(ctx)
	}
	n, getErr := sum.Get(ctx, statebackend.SoloKey)
	fmt.Println(n, errors.Join(err, getErr))
	// Output: 42 <nil>
}
