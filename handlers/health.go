package handlers

import (
	"net/http"
	"sync"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/openapi"
)

// health answers that the process runs.
func (a *api) health(c *gin.Context) error {
	return writeJSON(c, http.StatusOK, healthView{Status: "ok"})
}

// ready answers whether this replica can do its work: with its warnings if it can, or else with the reason.
func (a *api) ready(c *gin.Context) error {
	if err := a.Ready(c.Request.Context()); err != nil {
		return &statusError{http.StatusServiceUnavailable, err.Error()}
	}
	return writeJSON(c, http.StatusOK, healthView{Status: "ready", Warnings: a.Warnings(c.Request.Context())})
}

// healthView is the answer to a health check.
type healthView struct {
	Status   string   `json:"status"`
	Warnings []string `json:"warnings,omitempty"`
}

// The API's own specification, in its two forms.
var (
	specificationYAML = specificationAs("application/yaml", func() []byte { return openapi.YAML })
	specificationJSON = specificationAs("application/json", openapi.JSON)
)

// jobSchema answers the schema of files of jobs.
var jobSchema = specificationAs("application/schema+json", openapi.JobSchema)

func specificationAs(mediaType string, form func() []byte) func(*gin.Context) error {
	tag := sync.OnceValue(func() string { return digest(form()) })
	return func(c *gin.Context) error {
		writeTagged(c, mediaType, tag(), form())
		return nil
	}
}
