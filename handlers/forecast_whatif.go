package handlers

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/job"
)

// question is a request for a forecast under assumptions.
type question struct {
	From *string `json:"from"`
	To   *string `json:"to"`
	Step *string `json:"step"`
	Top  *int    `json:"top" validate:"omitnil,min=1,max=1000"`
	// Replicas and PerSecond are assumed instead of the present ones.
	Replicas  *int                    `json:"replicas" validate:"omitnil,min=1,max=1000"`
	PerSecond *float64                `json:"perSecond" validate:"omitnil,min=0.001,max=10000000"`
	Limits    map[string]assumedLimit `json:"limits" validate:"max=1000,dive"`
	Down      []assumedDown           `json:"down" validate:"max=1000,dive"`
}

// assumedLimit is an assumed limit of a destination.
type assumedLimit struct {
	PerSecond *float64 `json:"perSecond" validate:"required,min=0.001,max=10000000"`
}

// assumedDown is a time in which a destination is assumed to take nothing.
type assumedDown struct {
	Destination string        `json:"destination" validate:"required"`
	From        *string       `json:"from" validate:"required"`
	For         *job.Duration `json:"for" validate:"required,within=1s 366d"`
}

// postForecast answers with a forecast under assumptions.
func (a *api) postForecast(c *gin.Context) error {
	body, err := a.readJSON(c)
	if err != nil {
		return err
	}
	asked, err := job.Parse[*question](body)
	if err != nil {
		return err
	}
	given := url.Values{}
	for name, text := range map[string]*string{"from": asked.From, "to": asked.To, "step": asked.Step} {
		if text != nil {
			given.Set(name, *text)
		}
	}
	span, err := readSpan(given, a.now(), func(name, message string) error { return job.InvalidField("/"+name, message) })
	if err != nil {
		return err
	}
	if span.top = defaultTop; asked.Top != nil {
		span.top = *asked.Top
	}
	assume := whatIf{limits: make(map[string]float64)}
	if asked.Replicas != nil {
		assume.replicas = *asked.Replicas
	}
	if asked.PerSecond != nil {
		assume.perSecond = *asked.PerSecond
	}
	for name, limit := range asked.Limits {
		assume.limits[name] = *limit.PerSecond
	}
	for i, d := range asked.Down {
		from, err := job.ParseInstant(*d.From)
		if err != nil {
			return job.InvalidField(fmt.Sprintf("/down/%d/from", i), err.Error())
		}
		assume.down = append(assume.down, forecast.Down{
			Destination: d.Destination, From: from, Until: from.Add(time.Duration(*d.For)),
		})
	}
	view, err := a.forecast(c.Request.Context(), who(c).Scope, span, &assume)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, view)
}
