package handlers

import (
	"time"

	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// crowded is a second that has many occurrences.
type crowded struct {
	At          string `json:"at"`
	Occurrences int    `json:"occurrences"`
}

func crowdedViews(all []forecast.Crowded) (views []crowded) {
	for _, c := range all {
		views = append(views, crowded{job.FormatTime(c.At), c.Occurrences})
	}
	return views
}

// crowdedBy returns the crowded seconds among the due times of a job that was stored.
func (a *api) crowdedBy(put *store.Put) []forecast.Crowded {
	if a.crowd == nil {
		return nil
	}
	due := make([]time.Time, len(put.Occurrences))
	for i := range put.Occurrences {
		due[i] = put.Occurrences[i].DueAt
	}
	return a.crowd.Submitted(a.now(), due)
}
