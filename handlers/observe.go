package handlers

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// Observe makes the handler of the listener for monitoring: this replica's health and metrics, without authentication.
func Observe(config Config) http.Handler {
	a := &api{Config: config.withDefaults()}
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.Use(nameRequest, a.recoverPanic)
	e.NoRoute(a.answer(noRoute))
	e.NoMethod(a.answer(noMethod))
	e.GET("/healthz", a.answer(a.health))
	e.GET("/readyz", a.answer(a.ready))
	e.GET("/metrics", a.answer(a.showMetrics))
	return compressed(headAsGet{e})
}
