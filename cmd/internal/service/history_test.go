package service_test

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/history"
)

func TestHistoryOption(t *testing.T) {
	for value, want := range map[string]history.Policy{
		"24h":          {Keep: 24 * time.Hour},
		"7d":           {Keep: 7 * 24 * time.Hour},
		"10m":          {Keep: 10 * time.Minute},
		"0":            {},
		"0s":           {},
		"failures":     {Keep: 24 * time.Hour, Failures: true},
		"failures:30d": {Keep: 30 * 24 * time.Hour, Failures: true},
	} {
		o, err := service.Configure(map[string]string{"history": value})
		if err != nil || o.History.Policy != want {
			t.Errorf("%s is %+v, %v", value, o.History, err)
		}
		again, err := service.Configure(map[string]string{"history": o.History.String()})
		if err != nil || again.History.Policy != want {
			t.Errorf("%s is written as %s, which is %+v, %v", value, o.History.String(), again.History, err)
		}
	}
	for _, value := range []string{"", "-1h", "failure", "failures:", "failures:-1h", "24h:failures", "1"} {
		if o, err := service.Configure(map[string]string{"history": value}); err == nil {
			t.Errorf("%q is taken for %+v", value, o.History)
		}
	}
	if o, err := service.Configure(nil); err != nil || o.History.String() != "24h" {
		t.Errorf("the default is %s, %v", o.History.String(), err)
	}
}
