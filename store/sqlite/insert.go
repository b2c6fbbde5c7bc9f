package sqlite

import (
	"database/sql"

	"github.com/carillon-scheduler/carillon/job"
)

// atOnce is the number of occurrences that one statement for several inserts or deletes. Per occurrence, that takes
// little more than half the time of a statement for one. A larger number is hardly faster.
const atOnce = 16

// inserter inserts occurrences of jobs within one transaction. The statements use the transaction's context.
type inserter struct {
	one, many *sql.Stmt
	waiting   []any // parameters of the occurrences that are yet to be inserted
}

func newInserter(tx *sql.Tx, s *statements) inserter {
	return inserter{one: tx.Stmt(s.occurrenceInsert), many: tx.Stmt(s.occurrencesInsert)}
}

// add inserts an occurrence of the job with this row, now or at the next flush. Listed is false if the job's row names
// the occurrence as its only one.
func (w *inserter) add(o *job.Occurrence, row int64, listed bool) error {
	step, subscriber := partValues(o)
	priority, lane := laneValues(o)
	w.waiting = append(w.waiting, row, listed, o.ID[:], priority, lane, o.Position,
		o.Timestamp.UnixMilli(), o.DueAt.UnixMilli(), step, subscriber)
	if len(w.waiting) < atOnce*occurrenceParameters {
		return nil
	}
	_, err := w.many.Exec(w.waiting...)
	w.waiting = w.waiting[:0]
	return err
}

// flush inserts the waiting occurrences.
func (w *inserter) flush() error {
	for rest := w.waiting; len(rest) > 0; rest = rest[occurrenceParameters:] {
		if _, err := w.one.Exec(rest[:occurrenceParameters]...); err != nil {
			return err
		}
	}
	w.waiting = w.waiting[:0]
	return nil
}
