package forecast_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

// crontabs are jobs with crontabs of H: as many different ones as there are minutes in a week.
type crontabs int

func (n crontabs) job(i int) *job.Job {
	text := fmt.Sprintf(`{"key":"job-%07d","crontab":"H H * * H","timezone":"Europe/Paris","callback":{"type":"webhook","data":%q}}`,
		i, "https://host-"+strconv.Itoa(i%100)+".example.com/path")
	draft, err := job.Decode([]byte(text))
	if err != nil {
		panic(err)
	}
	j, err := draft.Job("tenant-"+strconv.Itoa(i%10), job.Limits{Instants: 10, Payload: 10_000})
	if err != nil {
		panic(err)
	}
	j.Revision = job.NewRevision(monday)
	j.Version, j.CreatedAt = j.Revision, monday
	if _, err := j.Begin(monday, job.PastFire, expansion); err != nil {
		panic(err)
	}
	return &j
}

func (n crontabs) Export(_ context.Context, after store.Place, limit int) (page []store.Document, next store.Place, err error) {
	first, _ := strconv.Atoi(string(after))
	for i := first; i < min(first+limit, int(n)); i++ {
		page = append(page, store.Document{Job: n.job(i)})
	}
	return page, store.Place(strconv.Itoa(first + len(page))), nil
}

// BenchmarkReport answers a forecast of a week, of crontabs that were read before.
func BenchmarkReport(b *testing.B) {
	for _, n := range []crontabs{1000, 100_000} {
		plan, err := forecast.Read(b.Context(), n, destination, monday, forecast.DefaultBounds)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(strconv.Itoa(int(n)), func(b *testing.B) {
			for b.Loop() {
				r := plan.Report(&forecast.Query{From: monday, Step: time.Hour, Steps: 7 * 24, Top: 10, Capacity: tenPerSecond()})
				if r.Total < int(n)*99/100 || r.Incomplete {
					b.Fatal(r.Total, r.Incomplete)
				}
			}
		})
	}
}

// BenchmarkRead reads the definitions of jobs from a file.
func BenchmarkRead(b *testing.B) {
	for _, n := range []crontabs{1000, 100_000} {
		b.Run(strconv.Itoa(int(n)), func(b *testing.B) {
			s, err := sqlite.Open(b.Context(), "sqlite:"+filepath.Join(b.TempDir(), "jobs.db"))
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			for place := store.Place(""); ; {
				page, next, _ := n.Export(b.Context(), place, 10_000)
				if len(page) == 0 {
					break
				}
				if _, err := s.Import(b.Context(), page); err != nil {
					b.Fatal(err)
				}
				place = next
			}
			for b.Loop() {
				plan, err := forecast.Read(b.Context(), s, destination, monday, forecast.DefaultBounds)
				if err != nil || plan.Jobs != int(n) {
					b.Fatal(err)
				}
			}
		})
	}
}
