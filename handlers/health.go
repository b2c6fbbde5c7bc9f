package handlers

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/openapi"
)

// health answers that the process runs.
func (a *api) health(c *gin.Context) error {
	return writeJSON(c, http.StatusOK, map[string]string{"status": "ok"})
}

// ready answers whether this replica can do its work, and if not why.
func (a *api) ready(c *gin.Context) error {
	if err := a.Ready(c.Request.Context()); err != nil {
		return &statusError{http.StatusServiceUnavailable, err.Error()}
	}
	return writeJSON(c, http.StatusOK, map[string]string{"status": "ready"})
}

// specification answers with the API's own specification.
func (a *api) specification(c *gin.Context) error {
	writeAs(c, http.StatusOK, "application/yaml", openapi.YAML)
	return nil
}
