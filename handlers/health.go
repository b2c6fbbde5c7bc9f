package handlers

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/openapi"
)

// health answers that the process runs.
func (a *api) health(c *gin.Context) error {
	return writeJSON(c, http.StatusOK, status{Status: "ok"})
}

// ready answers whether this replica can do its work, and if not why; if so, what should be otherwise even so.
func (a *api) ready(c *gin.Context) error {
	if err := a.Ready(c.Request.Context()); err != nil {
		return &statusError{http.StatusServiceUnavailable, err.Error()}
	}
	return writeJSON(c, http.StatusOK, status{Status: "ready", Warnings: a.Warnings(c.Request.Context())})
}

// status shows how this replica is.
type status struct {
	Status   string   `json:"status"`
	Warnings []string `json:"warnings,omitempty"`
}

// specification answers with the API's own specification.
func (a *api) specification(c *gin.Context) error {
	writeAs(c, http.StatusOK, "application/yaml", openapi.YAML)
	return nil
}
