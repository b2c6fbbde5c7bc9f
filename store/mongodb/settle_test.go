//go:build services

package mongodb_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// TestSettlementMeetsAClaim: an occurrence that another claim takes between two commands of its settlement, since its
// lease is over, counts by the settlement that ends it alone.
func TestSettlementMeetsAClaim(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	late := epoch.Add(time.Minute)
	for _, outcome := range []store.Outcome{store.Bury, store.Miss} {
		for _, others := range []store.Outcome{store.Bury, store.Miss, store.Ack} {
			for n, sent := 1, 2; n <= sent; n++ {
				t.Run(fmt.Sprintf("outcome %d meets %d at command %d", outcome, others, n), func(t *testing.T) {
					db.empty(t, s)
					mustPut(t, s, newPut("k", epoch, 0, time.Second))
					var ends []store.Settlement
					for _, c := range mustClaim(t, s, late, 2) {
						ends = append(ends, settlement(c, outcome))
					}
					counts := map[store.Outcome]int{outcome: 2}
					relayed, r := db.relayed(t)
					sent = 0
					r.set(func(command) verdict {
						if sent++; sent != n {
							return pass
						}
						for _, c := range mustClaim(t, s, late.Add(2*lease), 1) {
							counts[outcome]--
							counts[others]++
							of := settlement(c, others)
							of.At = late.Add(2 * lease)
							if err := s.Settle(t.Context(), []store.Settlement{of}); err != nil {
								t.Error(err)
							}
						}
						return pass
					})
					err := relayed.Settle(t.Context(), ends)
					r.set(nil)
					if err != nil {
						t.Fatal(err)
					}
					if outcome == store.Miss && others != store.Bury && n == 2 { // who deleted which is unknown
						counts[store.Miss]--
					}
					present, err := store.ReadJob(t.Context(), s, name("k"))
					if err != nil {
						t.Fatal(err)
					}
					if present.Failed != counts[store.Bury] || present.Missed != counts[store.Miss] {
						t.Errorf("%d failed and %d are missed; it must be %d and %d", present.Failed, present.Missed,
							counts[store.Bury], counts[store.Miss])
					}
				})
			}
		}
	}
}
