package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/ui"
)

// showPage runs a service with something of everything, for its web page, until ctx ends.
func showPage(ctx context.Context, in cli.Input, dir string) (err error) {
	works, worksURL, err := startAnswering(ctx, http.StatusOK)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, works.Close()) }()
	fails, failsURL, err := startAnswering(ctx, http.StatusServiceUnavailable)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fails.Close()) }()

	keyFile := filepath.Join(dir, "encryption.key")
	if err := newKey(keyFile, io.Discard); err != nil {
		return err
	}
	options, err := service.Configure(map[string]string{
		"store": "sqlite:" + filepath.Join(dir, "demo.db"), "encryption-key-file": keyFile, "shutdown-timeout": "2s",
		"objective": "99.9%<1s,acme:99%<250ms",
	})
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(in.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	s, err := service.New(ctx, options, log)
	if err != nil {
		return err
	}
	url, stop, err := s.Start(ctx, s.Run)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := fill(ctx, url, worksURL, failsURL, time.Now()); err != nil {
		return err
	}
	fmt.Fprintf(in.Stdout, "The web page: %s%s\nIt shows jobs of all kinds, a destination that fails, a paused tenant, "+
		"and more. Ctrl+C ends it, and removes everything.\n", url, ui.Prefix)
	<-ctx.Done()
	return nil
}

// startAnswering starts a web server that answers every request with a status, after a moment.
func startAnswering(ctx context.Context, status int) (*http.Server, string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			time.Sleep(20 * time.Millisecond)
			if r.URL.Path == "/gone" {
				w.WriteHeader(http.StatusGone)
				return
			}
			w.WriteHeader(status)
		}),
	}
	go func() { _ = server.Serve(listener) }() // ends when it is closed
	return server, "http://" + listener.Addr().String(), nil
}

type object = map[string]any

// fill submits jobs of all kinds like a client: for receivers that work and that fail.
func fill(ctx context.Context, url, works, fails string, now time.Time) error {
	at := func(d time.Duration) string { return job.FormatTime(now.Add(d)) }
	hook := func(to string, payload any) object {
		return object{"type": "http", "data": object{"url": to, "payload": payload}}
	}
	jobs := []object{
		{"key": "heartbeat", "crontab": "@every 2s", "callback": hook(works+"/heartbeat", object{"ping": true})},
		{
			"key": "orders/import", "crontab": "*/5 * * * * *", "priority": "high",
			"callback": hook(works+"/orders", object{"since": "last"}),
		},
		{
			"key": "billing/monthly", "crontab": "30 2 28 * *", "timezone": "Europe/Berlin", "deadline": "6h",
			"callback": hook(works+"/billing", object{"report": "monthly", "currency": "EUR"}),
		},
		{
			"key": "reports/weekdays", "crontab": "H 6 * * mon-fri", "timezone": "America/New_York", "spread": "10m",
			"callback": hook(works+"/reports", object{"report": "daily"}),
		},
		{
			"key": "backup/nightly", "crontab": "0 3 * * *", "timezone": "Asia/Tokyo",
			"callback": hook(works+"/backup", object{"keep": 7}),
		},
		{
			"key": "campaigns/autumn", "startAt": at(0), "subscribers": 250,
			"steps": []object{
				{"type": "job", "metadata": object{"mail": "welcome"}},
				{"type": "wait_certain_period", "delay_period": 20, "delay_unit": "minutes"},
				{"type": "job", "metadata": object{"mail": "tips"}},
				{"type": "wait_weekday", "weekdays": []string{"monday", "thursday"}},
				{"type": "job", "metadata": object{"mail": "offer"}},
			},
			"timezone": "Europe/Paris", "callback": hook(works+"/mails", nil),
		},
		{
			"key": "crm/sync", "crontab": "@every 4s", "retry": object{"maxAttempts": 2, "initial": "1s", "max": "1s"},
			"callback": hook(fails+"/crm", object{"sync": "contacts"}),
		},
		{"key": "welcome/ada", "delay": "1s", "callback": hook(works+"/mails", object{"to": "ada"})},
	}
	for i := range 12 {
		jobs = append(jobs, object{
			"key": fmt.Sprintf("legacy/export-%02d", i+1), "schedules": []string{at(time.Duration(i) * 400 * time.Millisecond)},
			"retry": object{"maxAttempts": 1}, "callback": hook(works+"/gone", object{"export": i + 1}),
		})
	}
	for i := range 120 {
		jobs = append(jobs, object{
			"key": fmt.Sprintf("reminders/user-%04d", 1000+i*7), "schedules": []string{at(time.Duration(i*i) * 6 * time.Second)},
			"callback": hook(works+"/reminders", object{"user": 1000 + i*7}),
		})
	}
	acme := make([]object, 0, 400)
	for i := range 400 {
		acme = append(acme, object{
			"key": fmt.Sprintf("auction-%03d", i+1), "schedules": []string{at(time.Duration(i*3) * time.Minute)},
			"callback": hook(works+"/auctions", object{"auction": i + 1, "close": true}),
		})
	}
	var bolt []object
	for i := range 80 {
		bolt = append(bolt, object{
			"key": fmt.Sprintf("parcel-%03d", i+1), "schedules": []string{at(time.Duration(i-40) * time.Minute)}, "past": "fire",
			"callback": hook(works+"/parcels", object{"parcel": i + 1}),
		})
	}
	for _, r := range []struct {
		method, path, tenant string
		body                 any
	}{
		{"PUT", "/v1/tenants/bolt", "", object{"paused": true}},
		{"PUT", "/v1/tenants/acme", "", object{"weight": 3, "priority": "high"}},
		{"POST", "/v1/jobs/batch", "default", jobs},
		{"POST", "/v1/jobs/batch", "acme", acme},
		{"POST", "/v1/jobs/batch", "bolt", bolt},
		{"POST", "/v1/jobs/backup%2Fnightly/pause", "default", object{}},
		{"POST", "/v1/signing-secrets", "default", object{"name": "default"}},
		{
			"PUT", "/v1/secrets/billing-token", "default",
			object{"value": "only an example", "destinations": []string{"http " + works}},
		},
	} {
		if err := send(ctx, r.method, url+r.path, r.tenant, r.body); err != nil {
			return err
		}
	}
	return nil
}

// send makes a request to the demo's service.
func send(ctx context.Context, method, url, tenant string, body any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if tenant != "" {
		request.Header.Set("Carillon-Tenant", tenant)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusBadRequest || bytes.Contains(answer, []byte(`"status":4`)) {
		return fmt.Errorf("%s %s was answered %s: %.300s", method, url, response.Status, answer)
	}
	return nil
}
