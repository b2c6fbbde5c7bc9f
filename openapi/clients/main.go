// Command clients calls a running Carillon through the client that oapi-codegen generates from openapi.yaml, and fails
// if an answer does not fit the generated types. Its argument is the program to run. The program serves on a free port
// and uses a temporary file.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/openapi/clients/api"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program string) (err error) {
	dir, err := os.MkdirTemp("", "carillon-clients-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	key := filepath.Join(dir, "carillon.key")
	if out, err := exec.CommandContext(ctx, program, "secrets", "new-key", key).CombinedOutput(); err != nil {
		return fmt.Errorf("no key is made: %w: %s", err, out)
	}
	serving, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(serving, program, "serve", "--listen=127.0.0.1:0",
		"--store=sqlite:"+filepath.Join(dir, "carillon.db"), "--encryption-key-file="+key)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	log, err := cmd.StderrPipe()
	if err != nil {
		cancel()
		return err
	}
	if err := cmd.Start(); err != nil {
		cancel()
		return err
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // its exit status does not matter
	}()
	address, err := listening(log)
	if err != nil {
		return err
	}
	client, err := api.NewClientWithResponses("http://" + address)
	if err != nil {
		return err
	}
	return errors.Join(use(ctx, client), verify(ctx, client))
}

// listening reads the program's log up to its address, and keeps reading so that the program is not blocked.
func listening(log interface{ Read([]byte) (int, error) }) (string, error) {
	served := regexp.MustCompile(`msg=serving address=(\S+)`)
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if found := served.FindStringSubmatch(lines.Text()); found != nil {
			go func() {
				for lines.Scan() { //nolint:revive // nobody reads it
				}
			}()
			return found[1], nil
		}
	}
	return "", errors.New("the program does not serve")
}

const key = "a/b %ü"

// use submits, reads, changes, lists and cancels jobs, with each type of callback and each kind of schedule.
func use(ctx context.Context, client *api.ClientWithResponses) error {
	var callback api.Callback
	var payload any = map[string]any{"user": 1234}
	var team, authorization api.HeaderValue
	secret, err := client.PutSecretWithResponse(ctx, "token", nil, api.NewSecret{Value: "s3cret"})
	if err = check(secret, err); err != nil {
		return err
	}
	err = errors.Join(team.FromHeaderValue0("billing"), authorization.FromSecretReference(api.SecretReference{Secret: "token"}))
	if err != nil {
		return err
	}
	err = callback.FromHTTPCallback(api.HTTPCallback{Type: api.Http, Data: api.HTTPCallbackData{
		Url: "https://example.com/hook", Headers: &map[string]api.HeaderValue{"X-Team": team, "Authorization": authorization},
		Payload: &payload,
	}})
	if err != nil {
		return err
	}
	instants, attempts, absent := api.NewSchedules{time.Now().Add(24 * time.Hour)}, 3, "*"
	put, err := client.PutJobWithResponse(ctx, key, &api.PutJobParams{IfNoneMatch: &absent},
		api.JobForKey{Schedules: &instants, Callback: callback, Retry: &api.Retry{MaxAttempts: &attempts}})
	if err = check(put, err); err != nil {
		return err
	}
	if put.JSON201 == nil || put.JSON201.Occurrences != 1 || put.Headers201.ETag == "" {
		return fmt.Errorf("the job was answered with %s", put.Body)
	}
	got, err := client.GetJobWithResponse(ctx, key, nil)
	if err = check(got, err); err != nil {
		return err
	}
	shown, err := got.JSON200.Callback.AsHTTPCallback()
	if err != nil || shown.Data.Url != "https://example.com/hook" ||
		got.JSON200.Key != key || got.JSON200.Retry.MaxAttempts != attempts {
		return errors.Join(err, fmt.Errorf("the job is shown as %s", got.Body))
	}
	tag, limit := got.Headers200.ETag, api.Deadline("1h")
	same, err := client.GetJobWithResponse(ctx, key, &api.GetJobParams{IfNoneMatch: &tag})
	if err != nil || same.StatusCode() != http.StatusNotModified {
		return errors.Join(err, fmt.Errorf("what has not changed is answered with %s", same.Status()))
	}
	patched, err := client.PatchJobWithApplicationMergePatchPlusJSONBodyWithResponse(ctx, key,
		&api.PatchJobParams{IfMatch: &tag}, api.JobPatch{Deadline: &limit})
	if err = check(patched, err); err != nil {
		return err
	}
	results, err := batch(ctx, client, callback)
	if err != nil {
		return err
	}
	accepted, err := results[0].AsBatchAccepted()
	if err != nil || accepted.Status != 201 || accepted.Revision == "" {
		return errors.Join(err, fmt.Errorf("the first result is %+v", accepted))
	}
	refused, err := results[1].AsBatchRefused()
	if err != nil || refused.Status != 422 || refused.Errors == nil || *(*refused.Errors)[0].Pointer != "/crontab" {
		return errors.Join(err, fmt.Errorf("the second result is %+v", refused))
	}
	weight := 2.5
	tenant, err := client.PutTenantWithResponse(ctx, "acme", api.TenantSettings{Weight: &weight})
	if err = check(tenant, err); err != nil {
		return err
	}
	if *tenant.JSON201.Settings.Weight != weight {
		return fmt.Errorf("the tenant is %s", tenant.Body)
	}
	jobs, err := client.ListJobsWithResponse(ctx, nil)
	if err = check(jobs, err); err != nil {
		return err
	}
	if len(jobs.JSON200.Items) != 2 {
		return fmt.Errorf("the jobs are %s", jobs.Body)
	}
	backlog, err := client.GetBacklogWithResponse(ctx, nil)
	if err = check(backlog, err); err != nil {
		return err
	}
	cancelled, err := client.CancelJobWithResponse(ctx, key, nil)
	if err = check(cancelled, err); err != nil {
		return err
	}
	if cancelled.JSON200.Cancelled != 1 {
		return fmt.Errorf("the cancellation was answered with %s", cancelled.Body)
	}
	return nil
}

// verify runs a receiver that verifies a signed delivery with the npm package standardwebhooks.
func verify(ctx context.Context, client *api.ClientWithResponses) error {
	made, err := client.PostSigningSecretWithResponse(ctx, nil, api.NewSigningSecret{Name: "default"})
	if err = check(made, err); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "node", "receiver.mjs")
	cmd.Env = append(os.Environ(), "WEBHOOK_SECRET="+made.JSON201.Secret)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return errors.Join(fmt.Errorf("the receiver does not listen: %w", err), cmd.Wait())
	}
	var callback api.Callback
	var payload any = map[string]any{"text": "Grüße"}
	err = callback.FromHTTPCallback(api.HTTPCallback{Type: api.Http, Data: api.HTTPCallbackData{
		Url: strings.TrimSpace(url), Payload: &payload,
	}})
	if err != nil {
		return err
	}
	now := api.Delay("0s")
	put, err := client.PutJobWithResponse(ctx, "signed", nil, api.JobForKey{Delay: &now, Callback: callback})
	if err = check(put, err); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("the delivery is not verified: %w", err)
	}
	return nil
}

// batch submits a sequence for three kinds of subscribers, and a job with an invalid crontab.
func batch(ctx context.Context, client *api.ClientWithResponses, callback api.Callback) ([]api.BatchResult, error) {
	var list [3]api.SubscriberInList
	var subscribers api.Subscribers
	var step api.Step
	if err := errors.Join(list[0].FromSubscriberInList0("alice"), list[1].FromSubscriberInList1(7),
		list[2].FromSubscriberInList2(map[string]any{"id": 3}), subscribers.FromSubscribers1(list[:]),
		step.FromJobStep(api.JobStep{Type: api.JobStepTypeJob})); err != nil {
		return nil, err
	}
	steps, crontab := api.Steps{step}, "never"
	answer, err := client.PostBatchWithResponse(ctx, nil, []api.JobInBatch{
		{Key: "sequence", Steps: &steps, Subscribers: &subscribers, Callback: callback},
		{Key: "refused", Crontab: &crontab, Callback: callback},
	})
	if err = check(answer, err); err != nil {
		return nil, err
	}
	if len(*answer.JSON200) != 2 {
		return nil, fmt.Errorf("the batch was answered with %s", answer.Body)
	}
	return *answer.JSON200, nil
}

// check returns an error if a call has failed.
func check(answer interface{ StatusCode() int }, err error) error {
	if err != nil {
		return err
	}
	if answer.StatusCode() >= 300 {
		return fmt.Errorf("%T: status %d", answer, answer.StatusCode())
	}
	return nil
}
