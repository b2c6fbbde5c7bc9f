package callbacks

import (
	"errors"

	"github.com/carillon-scheduler/carillon/job"
)

// Parse reads callback data into a struct and checks them, as [job.Parse] does. The error is a [*job.Invalid].
func Parse[T any](data []byte) (T, error) {
	v, err := job.Parse[T](data)
	if malformed, ok := errors.AsType[*job.Malformed](err); ok {
		err = job.InvalidField("", malformed.Reason)
	}
	return v, err
}
